#include "shadowib/exchange/directory_exchange.h"

#include <linux/fs.h>

#include <algorithm>
#include <atomic>
#include <functional>

#include "shadowib/base/deadline.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/shared_names.h"
#include "shadowib/exchange/bundle.h"
#include "shadowib/exchange/directory_waiter.h"
#include "shadowib/exchange/raw_files.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace shadowib {
namespace {

constexpr char kMarker[] = ".exchange";
constexpr char kTemporary[] = ".tmp", kAlike[] = ".alike", kBundles[] = ".bundles";
constexpr std::uint64_t kBundleFiles = 64;  // that take values at a time
constexpr int kBundleTries = 3;             // of which two find a file that takes no more
constexpr char kCount[] = "/=";             // below a barrier's directory; '=' is in no member's name
// Who sleeps by a bell looks again, in case that who was to ring was killed before, or is of an older version.
constexpr std::int64_t kLookAgainNs = 1'000'000'000;
constexpr std::int64_t kFirstPauseNs = 1'000'000, kLongestPauseNs = 64'000'000;  // for another's file, which is small

// "a/b/c" and '=' give "a/b/=c".
std::string file_of(std::string_view key, char mark) {
  std::size_t slash = key.rfind('/');
  std::size_t at = slash == std::string_view::npos ? 0 : slash + 1;
  std::string path;
  path.reserve(key.size() + 1);
  path.append(key.substr(0, at)).push_back(mark);
  path.append(key.substr(at));
  return path;
}

void sleep_ns(std::int64_t ns) {
  const timespec time{ns / 1000000000, ns % 1000000000};
  ::syscall(SYS_nanosleep, &time, nullptr);
}

std::string parent_of(const std::string& path) {
  std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string(".") : path.substr(0, slash);
}

// File systems that only this machine changes, so that inotify sees everything.
bool local_file_system(int fd) {
  const std::string type = file_system_of(fd);
  for (const char* local : {"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "ramfs", "overlay", "f2fs", "zfs"})
    if (type == local) return true;
  return false;
}

class DirectoryExchange final : public Exchange {
 public:
  DirectoryExchange(const std::string& path, OwnedFd root)
      : path_(path), uri_("dir:" + path), root_(std::move(root)), remote_(!local_file_system(root_.get())) {
    waiters_.set_remote(remote_);
    if (::syscall(SYS_getrandom, &instance_, sizeof(instance_), 0) != sizeof(instance_))
      instance_ = static_cast<std::uint64_t>(monotonic_ns());
  }

  const std::string& uri() const override { return uri_; }

 private:
  Status do_publish(std::string_view key, std::string_view value) override;
  Status do_publish_alike(std::string_view key, std::string_view value) override;
  Status do_lookup(const std::vector<std::string>& keys, std::vector<std::string>* values,
                   std::vector<bool>* found) override;
  Status do_claim(std::string_view key, std::string_view value) override;
  Status do_remove(std::string_view key) override;
  Status do_list(std::string_view prefix, std::vector<std::string>* names) override;
  Status do_barrier(std::string_view name, std::string_view member, int n, int timeout_ms,
                    std::string_view abort_key) override;
  Status do_entered(std::string_view name, std::vector<std::string>* members) override;
  Status do_watch(std::string_view prefix, std::uint64_t* token, int timeout_ms, int cancel_fd) override;

  Status io(int err, const char* what, std::string_view key) const;
  bool lost() const { return ::syscall(SYS_faccessat, root_.get(), kMarker, F_OK) != 0; }
  // Before a file is looked for that another host may have made, replaced or removed.
  void revalidate(const std::string& file) {
    if (remote_) revalidate_directory(root_.get(), parent_of(file));
  }
  bool exists(const std::string& file) {
    revalidate(file);
    return ::syscall(SYS_faccessat, root_.get(), file.c_str(), F_OK) == 0;
  }
  // A value has come or gone.
  void ring(const std::string& file) {
    if (!remote_) ring_bell(root_.get(), parent_of(file));
  }
  OwnedFd open_directory(const std::string& directory);
  // A value's file of its own, which replaces what is there.
  Status publish_file(std::string_view key, std::string_view value);
  std::string temporary_name();
  int make_temporary(std::string_view value, std::string* name);
  void drop_temporary(const std::string& name) { ::syscall(SYS_unlinkat, root_.get(), name.c_str(), 0); }
  // Calls put() and, if a directory above `target` is missing, makes it and calls put() again. 0 or errno.
  template <typename Put>
  int with_parents(const std::string& target, Put put);
  int link_in_place(const std::string& temporary, const std::string& target);
  // Gives a small value to the key that `target` stands for, if there is none. 0, EEXIST, or another errno: then the
  // value needs a file of its own.
  int put_in_bundle(std::string_view key, std::string_view value, const std::string& target);
  bool holds_value(int directory, int depth);
  Status fingerprint(const std::string& directory, OwnedFd* held, std::uint64_t* print);
  // False if something else has its place by now.
  bool is_current(const OwnedFd& held, const std::string& directory) const;
  // A barrier's directory, with its name for messages.
  struct Barrier {
    std::string_view name;
    std::string directory, bell;  // where it is, and where those sleep that wait for it
    std::string count() const { return directory + kCount; }
  };
  int enter(const Barrier& barrier, std::string_view member, bool* linked);
  // The members that have entered, counted one by one.
  Status for_each_entered(const Barrier& barrier, const std::function<void(std::string_view)>& visit);
  Status look_at(const Barrier& barrier, int n, bool linked, bool overdue, bool* open);
  Status tell_entered(const Barrier& barrier, int entered);

  const std::string path_;
  const std::string uri_;
  OwnedFd root_;
  const bool remote_;  // other hosts change it, too
  WaiterPool waiters_;
  std::uint64_t instance_ = 0;
  std::atomic<std::uint64_t> next_temporary_{0};
};

Status DirectoryExchange::io(int err, const char* what, std::string_view key) const {
  if (lost())
    return Status::of(Code::kIo, err, "exchange %.150s: the directory is gone (cannot %s %.80s)", uri_.c_str(), what,
                      std::string(key).c_str());
  const char* remedy =
      err == ENOSPC || err == EDQUOT ? "; free space there or name another place with --exchange" : "";
  return Status::of(Code::kIo, err, "exchange %.150s: cannot %s %.80s: %s%s", uri_.c_str(), what,
                    std::string(key).c_str(), error_text(err), remedy);
}

// A client asks the server when it opens a directory, but not about one that it holds open or takes for missing.
OwnedFd DirectoryExchange::open_directory(const std::string& directory) {
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW;
  if (remote_ && directory == ".") revalidate_directory(root_.get(), "");
  OwnedFd fd = open_owned(root_.get(), directory.c_str(), kFlags);
  if (fd || errno != ENOENT || !remote_) return fd;
  revalidate_directory(root_.get(), directory);
  return open_owned(root_.get(), directory.c_str(), kFlags);
}

std::string DirectoryExchange::temporary_name() {
  char text[48];
  std::snprintf(text, sizeof(text), "%s/%016llx-%llx", kTemporary, static_cast<unsigned long long>(instance_),
                static_cast<unsigned long long>(next_temporary_.fetch_add(1)));
  return text;
}

// Writes value to a new file in .tmp. Names come from a random number of this instance and a counter; O_EXCL guards
// against a forked child that has inherited both.
int DirectoryExchange::make_temporary(std::string_view value, std::string* name) {
  for (;;) {
    const std::string text = temporary_name();
    OwnedFd fd = open_owned(root_.get(), text.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (!fd && errno == EEXIST) continue;
    if (!fd) return errno;
    *name = text;
    int err = write_whole(fd.get(), value);
    if (err == 0 && ::syscall(SYS_fchmod, fd.get(), 0600) != 0) err = errno;
    stamp(fd.get());
    if (err != 0) drop_temporary(*name);
    return err;
  }
}

template <typename Put>
int DirectoryExchange::with_parents(const std::string& target, Put put) {
  if (put() == 0) return 0;
  if (errno != ENOENT || lost()) return errno;
  if (int err = make_directories(root_.get(), parent_of(target)); err != 0) return err;
  return put() == 0 ? 0 : errno;
}

// Other hosts may not see at once what was added to a file that they know.
int DirectoryExchange::put_in_bundle(std::string_view key, std::string_view value, const std::string& target) {
  if (remote_ || value.size() > kBundledBytes) return EOPNOTSUPP;
  const std::string name = std::string(kBundles) + "/" + std::to_string(instance_ % kBundleFiles);
  int err = EAGAIN;
  for (int tries = 0; tries < kBundleTries && (err == EAGAIN || err == ENOENT); ++tries) {
    const OwnedFd file = add_to_bundle(root_.get(), name, key, value);
    err = file ? with_parents(target, [&] { return link_file(file.get(), root_.get(), target); }) : errno;
  }
  if (err == 0) ring(target);
  return err;
}

Status DirectoryExchange::do_publish(std::string_view key, std::string_view value) {
  if (is_bundle(value)) return publish_file(key, bundle_with(key, value));
  const std::string target = file_of(key, '=');
  if (!remote_ && value.size() <= kBundledBytes && !exists(target) && put_in_bundle(key, value, target) == 0)
    return {};
  return publish_file(key, value);
}

Status DirectoryExchange::publish_file(std::string_view key, std::string_view value) {
  std::string temporary, target = file_of(key, '=');
  if (int err = make_temporary(value, &temporary); err != 0) return io(err, "write", key);
  int err = with_parents(
      target, [&] { return ::syscall(SYS_renameat, root_.get(), temporary.c_str(), root_.get(), target.c_str()); });
  if (err == 0) {
    ring(target);
    return {};
  }
  drop_temporary(temporary);
  return io(err, "publish", key);
}

// A key's first value is a hard link of the one file that holds it, whose name is its hash: making a link costs much
// less than making a file. Where that does not work, and for a value that replaces another, it is published alone.
Status DirectoryExchange::do_publish_alike(std::string_view key, std::string_view value) {
  if (is_bundle(value)) return do_publish(key, value);
  const XXH128_hash_t hash = XXH3_128bits(value.data(), value.size());
  char file[64];
  std::snprintf(file, sizeof(file), "%s/%016llx%016llx-%zx", kAlike, static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64), value.size());
  const std::string target = file_of(key, '=');
  const auto link = [&] {
    const long rc = ::syscall(SYS_linkat, root_.get(), file, root_.get(), target.c_str(), 0);
    if (rc == 0) ring(target);
    return rc == 0;
  };
  if (link()) return {};
  if (errno != ENOENT || lost()) return do_publish(key, value);
  if (make_directories(root_.get(), parent_of(target)) == 0 && link()) return {};
  if (errno != ENOENT || make_directories(root_.get(), kAlike) != 0) return do_publish(key, value);
  // Many come at the same time. One makes the file; it may be killed meanwhile.
  const std::string maker = std::string(file) + "+";
  if (::syscall(SYS_linkat, root_.get(), kMarker, root_.get(), maker.c_str(), 0) != 0)
    for (std::int64_t pause = kFirstPauseNs; errno == EEXIST && pause <= kLongestPauseNs; pause *= 2) {
      sleep_ns(pause);
      if (link()) return {};
      errno = EEXIST;
    }
  std::string temporary;
  if (make_temporary(value, &temporary) != 0) return do_publish(key, value);
  (void)::syscall(SYS_linkat, root_.get(), temporary.c_str(), root_.get(), file, 0);
  drop_temporary(temporary);
  return link() ? Status() : do_publish(key, value);
}

// link(2) fails if the target exists and never shows a half-written file. Over NFS its answer may be lost after it
// took place, so the link count decides; where a file system has no links, RENAME_NOREPLACE does the same.
int DirectoryExchange::link_in_place(const std::string& temporary, const std::string& target) {
  int err = with_parents(
      target, [&] { return ::syscall(SYS_linkat, root_.get(), temporary.c_str(), root_.get(), target.c_str(), 0); });
  if (err == EPERM || err == EOPNOTSUPP || err == ENOSYS || err == EMLINK)
    return with_parents(target, [&] {
      return ::syscall(SYS_renameat2, root_.get(), temporary.c_str(), root_.get(), target.c_str(), RENAME_NOREPLACE);
    });
  struct stat info {};
  if (err != 0 && ::fstatat(root_.get(), temporary.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && info.st_nlink == 2)
    return 0;
  return err;
}

Status DirectoryExchange::do_claim(std::string_view key, std::string_view value) {
  std::string temporary, whole, target = file_of(key, '=');
  if (exists(target)) return taken(key);
  const bool misleading = is_bundle(value);
  if (misleading) value = whole = bundle_with(key, value);
  const int bundled = misleading ? EOPNOTSUPP : put_in_bundle(key, value, target);
  if (bundled == EEXIST) return taken(key);
  if (bundled == 0) return {};
  if (int err = make_temporary(value, &temporary); err != 0) return io(err, "write", key);
  int err = link_in_place(temporary, target);
  drop_temporary(temporary);
  if (err == EEXIST) return taken(key);
  if (err == 0) ring(target);
  return err == 0 ? Status() : io(err, "claim", key);
}

Status DirectoryExchange::do_lookup(const std::vector<std::string>& keys, std::vector<std::string>* values,
                                    std::vector<bool>* found) {
  bool missed = false;
  std::string asked;  // the directory of the key before
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::string file = file_of(keys[i], '=');
    if (parent_of(file) != asked) revalidate(file);
    asked = parent_of(file);
    OwnedFd fd = open_owned(root_.get(), file.c_str(), O_RDONLY | O_NOFOLLOW);
    if (!fd && errno != ENOENT) return io(errno, "open", keys[i]);
    if (!fd) {
      missed = true;
      continue;
    }
    if (int err = read_whole(fd.get(), &(*values)[i]); err != 0) return io(err, "read", keys[i]);
    if (is_bundle((*values)[i])) {
      std::string_view value;
      if (!find_in_bundle((*values)[i], keys[i], &value)) return io(EILSEQ, "read", keys[i]);
      (*values)[i] = std::string(value);
    }
    (*found)[i] = true;
  }
  if (missed && lost()) return io(ENOENT, "look up", keys[0]);
  return {};
}

Status DirectoryExchange::do_remove(std::string_view key) {
  const std::string file = file_of(key, '=');
  revalidate(file);
  if (::syscall(SYS_unlinkat, root_.get(), file.c_str(), 0) == 0) {
    ring(file);
    return {};
  }
  int err = errno;
  return err == ENOENT && !lost() ? Status() : io(err, "remove", key);
}

// Directories made for a watch, or left by removed keys, are no names.
bool DirectoryExchange::holds_value(int directory, int depth) {
  bool holds = false;
  for_each_entry(directory, [&](std::string_view name, unsigned char) {
    if (name[0] == '=') holds = true;
    if (name[0] == '=' || name[0] == '@' || name[0] == '.' || depth == 0) return !holds;
    OwnedFd below = open_owned(directory, name.data(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (below) holds = holds_value(below.get(), depth - 1);
    return !holds;
  });
  return holds;
}

Status DirectoryExchange::do_list(std::string_view prefix, std::vector<std::string>* names) {
  OwnedFd fd = open_directory(std::string(prefix.empty() ? "." : prefix));
  if (!fd) return errno == ENOENT && !lost() ? Status() : io(errno, "list", prefix);
  int err = for_each_entry(fd.get(), [&](std::string_view name, unsigned char) {
    if (name[0] == '=') names->emplace_back(name.substr(1));
    if (name[0] == '=' || name[0] == '@') return true;
    if (prefix.empty() && (name == kMarker || name == kTemporary || name == kAlike || name == kBundles)) return true;
    OwnedFd below = open_owned(fd.get(), name.data(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (below && holds_value(below.get(), 8)) names->emplace_back(name);
    return true;
  });
  if (err != 0) return io(err, "list", prefix);
  if (names->empty() && lost()) return io(ENOENT, "list", prefix);
  return {};
}

// Each entry is a hard link of one file, so that its link count tells when it is worth counting the entries.
// *linked: false where the file system has no such links, or no more of them: then the entry is a file of its own.
int DirectoryExchange::enter(const Barrier& barrier, std::string_view member, bool* linked) {
  const std::string count = barrier.count(), entry = barrier.directory + "/" + std::string(member);
  const auto link = [&] {
    const long rc = ::syscall(SYS_linkat, root_.get(), count.c_str(), root_.get(), entry.c_str(), 0);
    return rc == 0 || errno == EEXIST ? 0 : errno;
  };
  int err = link();
  if (err == ENOENT && !lost()) {
    err = make_directories(root_.get(), barrier.directory);
    if (err == 0 && ::syscall(SYS_mknodat, root_.get(), count.c_str(), S_IFREG | 0600, 0) != 0 && errno != EEXIST)
      err = errno;
    revalidate(count);
    if (err == 0) err = link();
  }
  *linked = err != EPERM && err != EOPNOTSUPP && err != ENOSYS && err != EMLINK;
  if (*linked) return err;
  return ::syscall(SYS_mknodat, root_.get(), entry.c_str(), S_IFREG | 0600, 0) == 0 || errno == EEXIST ? 0 : errno;
}

Status DirectoryExchange::for_each_entered(const Barrier& barrier,
                                           const std::function<void(std::string_view)>& visit) {
  OwnedFd fd = open_directory(barrier.directory);
  if (!fd) return errno == ENOENT && !lost() ? Status() : io(errno, "look at barrier", barrier.name);
  const int err = for_each_entry(fd.get(), [&](std::string_view name, unsigned char) {
    if (name[0] != '=' && name[0] != '@') visit(name);
    return true;
  });
  return err == 0 ? Status() : io(err, "look at barrier", barrier.name);
}

// The count file's size is the number of members that somebody has counted; it only grows.
Status DirectoryExchange::tell_entered(const Barrier& barrier, int entered) {
  const OwnedFd fd = open_owned(root_.get(), barrier.count().c_str(), O_WRONLY | O_NOFOLLOW);
  if (!fd) return io(errno, "enter barrier", barrier.name);
  const long wrote = ::syscall(SYS_pwrite64, fd.get(), "", 1, static_cast<loff_t>(entered) - 1);
  if (wrote != 1) return io(wrote < 0 ? errno : EIO, "enter barrier", barrier.name);
  if (!remote_) ring_bell(root_.get(), barrier.bell);
  return {};
}

// A link count proves nothing, since others may make links, too. So one of those that see enough links counts the
// entries, and tells all others by the file's size. It may be killed before: if it is `overdue`, one more counts in
// each second. If all did, each would ring for all.
Status DirectoryExchange::look_at(const Barrier& barrier, int n, bool linked, bool overdue, bool* open) {
  const std::string count = barrier.count();
  struct stat info {};
  if (remote_) revalidate_directory(root_.get(), count);  // a client keeps size and links for a while
  if (::fstatat(root_.get(), count.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0)
    return io(errno, "enter barrier", barrier.name);
  *open = info.st_size >= n;
  linked = linked && info.st_nlink > 1;  // or entries are files, as this member's from before may be
  if (*open || (linked && info.st_nlink <= static_cast<nlink_t>(n))) return {};
  std::string counter = count + std::to_string(n);
  if (overdue) counter += "." + std::to_string(monotonic_ns() / kLookAgainNs);
  if (linked && ::syscall(SYS_linkat, root_.get(), kMarker, root_.get(), counter.c_str(), 0) != 0 && errno == EEXIST)
    return {};
  int entered = 0;
  SHADOWIB_TRY(for_each_entered(barrier, [&](std::string_view) { ++entered; }));
  if (entered == 0) return io(ENOENT, "enter barrier", barrier.name);  // our own entry has gone
  *open = entered >= n;
  return *open ? tell_entered(barrier, entered) : Status();
}

Status DirectoryExchange::do_barrier(std::string_view name, std::string_view member, int n, int timeout_ms,
                                     std::string_view abort_key) {
  const Deadline deadline = Deadline::in_ms(timeout_ms), overdue = Deadline::in_ns(kLookAgainNs);
  const std::int64_t began = monotonic_ns();
  const std::string abort = abort_key.empty() ? std::string() : file_of(abort_key, '=');
  const std::string directory = file_of(name, '@');
  const Barrier barrier{name, directory, abort.empty() ? directory : parent_of(abort)};
  bool linked = false;
  if (const int err = enter(barrier, member, &linked); err != 0) return io(err, "enter barrier", name);

  // Who finds everybody entered passes, even if the abort key exists by then: all that are still waiting decide
  // alike. Others sleep until the bell rings, beside the abort key if there is one: entries ring none.
  WaiterLease waiter(waiters_, barrier.bell);
  Bell& bell = waiter->bell;
  bool asked = bell.attends(barrier.bell), listens = asked;
  for (;;) {
    const std::uint32_t rung = listens ? bell.rung() : 0;
    const bool in_time = !deadline.has_passed();
    bool open = false;
    SHADOWIB_TRY(look_at(barrier, n, linked, overdue.has_passed(), &open));
    if (open) return {};
    if (!abort.empty() && exists(abort)) return given_up(name, abort_key);
    if (!in_time) return incomplete(name, n, timeout_ms);
    if (!asked) {
      asked = true;
      listens = !remote_ && bell.attend(root_.get(), barrier.bell);
      if (listens) continue;  // it may have rung before
    }
    const std::int64_t left = deadline.left_ns();
    if (listens)
      bell.sleep(rung, std::min(left, kLookAgainNs));
    else
      sleep_ns(std::min(left, DirectoryWaiter::interval_after(monotonic_ns() - began)));
  }
}

Status DirectoryExchange::do_entered(std::string_view name, std::vector<std::string>* members) {
  SHADOWIB_TRY(for_each_entered({name, file_of(name, '@'), {}},
                                [&](std::string_view member) { members->emplace_back(member); }));
  return members->empty() && lost() ? io(ENOENT, "look at barrier", name) : Status();
}

bool DirectoryExchange::is_current(const OwnedFd& held, const std::string& directory) const {
  struct stat own {
  }, there{};
  return held && ::fstat(held.get(), &own) == 0 &&
         ::fstatat(root_.get(), directory.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 && own.st_ino == there.st_ino &&
         own.st_dev == there.st_dev;
}

// A number that changes with the set of values directly below `directory` and with each of them.
// *held is the directory from the look before, or empty.
Status DirectoryExchange::fingerprint(const std::string& directory, OwnedFd* held, std::uint64_t* print) {
  auto mix = [](std::uint64_t h, std::uint64_t v) {
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    return h ^ (h >> 29);
  };
  *print = 1;
  OwnedFd fd = is_current(*held, directory) ? std::move(*held) : open_directory(directory);
  if (!fd) return errno == ENOENT && !lost() ? Status() : io(errno, "watch", directory);
  int err = for_each_entry(fd.get(), [&](std::string_view name, unsigned char) {
    struct stat info {};
    if (name[0] != '=' || ::fstatat(fd.get(), name.data(), &info, AT_SYMLINK_NOFOLLOW) != 0) return true;
    std::uint64_t h = 0;
    for (char c : name) h = mix(h, static_cast<unsigned char>(c));
    // A bundle is modified for other keys, too. Nobody here changes the time of access.
    const timespec& stamp = remote_ ? info.st_mtim : info.st_atim;
    h = mix(mix(h, info.st_ino), static_cast<std::uint64_t>(stamp.tv_sec));
    *print += mix(h, static_cast<std::uint64_t>(stamp.tv_nsec));
    return true;
  });
  if (err != 0) return io(err, "watch", directory);
  if (lost()) return io(ENOENT, "watch", directory);
  if (*print == 0) *print = 1;          // 0 is "not looked yet"
  if (!remote_) *held = std::move(fd);  // a directory held open is not asked for at its server
  return {};
}

Status DirectoryExchange::do_watch(std::string_view prefix, std::uint64_t* token, int timeout_ms, int cancel_fd) {
  const std::string directory(prefix.empty() ? "." : prefix);
  const Deadline deadline = Deadline::in_ms_or_never(timeout_ms);
  const std::string sleep_in = path_ + "/" + directory;
  WaiterLease waiter(waiters_, sleep_in);
  for (bool made = false;;) {
    if (!made && !lost()) made = make_directories(root_.get(), directory) == 0;
    waiter->arm(&sleep_in, 1);
    const bool listens =
        waiter->polling() && !remote_ && cancel_fd < 0 && waiter->bell.attend(root_.get(), directory);
    const std::uint32_t rung = listens ? waiter->bell.rung() : 0;
    std::uint64_t now_there = 0;
    SHADOWIB_TRY(fingerprint(directory, &waiter->held, &now_there));
    if (now_there != *token) {
      *token = now_there;
      return {};
    }
    if (deadline.has_passed()) return unchanged(prefix, timeout_ms);
    const std::int64_t left = timeout_ms < 0 ? -1 : deadline.left_ns();
    if (listens)
      waiter->bell.sleep(rung, left < 0 ? kLookAgainNs : std::min(left, kLookAgainNs));
    else if (waiter->wait(left, cancel_fd))
      return {};
  }
}

Status check_root(const std::string& path, int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0)
    return Status::of(Code::kIo, errno, "exchange dir:%.200s: %s", path.c_str(), error_text(errno));
  if (info.st_uid != static_cast<uid_t>(::syscall(SYS_geteuid)))
    return Status::of(Code::kPermission, EPERM,
                      "exchange dir:%.200s belongs to user %u; name a directory of your own with --exchange",
                      path.c_str(), info.st_uid);
  if ((info.st_mode & S_IWOTH) != 0)
    return Status::of(Code::kPermission, EPERM,
                      "exchange dir:%.200s may be written by everybody; run chmod 700 on it", path.c_str());
  return {};
}

}  // namespace

Status open_directory_exchange(const std::string& uri, const std::string& given, bool create,
                               std::unique_ptr<Exchange>* exchange) {
  if (given.empty() || given.size() > 900)
    return Status::of(Code::kUsage, EINVAL, "exchange '%.100s': dir: takes a path of 1 to 900 bytes", uri.c_str());
  std::string path = given;
  if (path[0] != '/') {
    char here[4096];
    if (::syscall(SYS_getcwd, here, sizeof(here)) < 0)
      return Status::of(Code::kIo, errno, "exchange %.100s: no working directory: %s", uri.c_str(),
                        error_text(errno));
    path = std::string(here) + "/" + path;
  }
  while (path.size() > 1 && path.back() == '/') path.pop_back();

  int err = create ? make_directories(AT_FDCWD, path) : 0;
  OwnedFd root;
  revalidate_directory(AT_FDCWD, path);
  if (err == 0) root = open_owned(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY);
  if (err == 0 && !root) err = errno;
  if (err == ENOENT && !create)
    return Status::of(Code::kNotFound, err, "exchange dir:%.200s does not exist; has the job been started?",
                      path.c_str());
  if (err != 0)
    return Status::of(Code::kIo, err,
                      "exchange dir:%.200s cannot be used: %s; name a directory you may write to with --exchange",
                      path.c_str(), error_text(err));
  SHADOWIB_TRY(check_root(path, root.get()));
  if (::syscall(SYS_faccessat, root.get(), kMarker, F_OK) != 0) {
    if (!create)
      return Status::of(Code::kNotFound, ENOENT, "dir:%.200s is no exchange; has the job been started?",
                        path.c_str());
    err = make_directories(root.get(), kTemporary);
    if (err == 0 && ::syscall(SYS_mknodat, root.get(), kMarker, S_IFREG | 0600, 0) != 0 && errno != EEXIST)
      err = errno;
    if (err != 0)
      return Status::of(Code::kIo, err,
                        "exchange dir:%.200s cannot be used: %s; name a directory you may write to with --exchange",
                        path.c_str(), error_text(err));
  }
  *exchange = std::make_unique<DirectoryExchange>(path, std::move(root));
  return {};
}

}  // namespace shadowib
