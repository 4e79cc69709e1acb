#include "hooks/imager/restore/system_v.h"

#include <fcntl.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "hooks/imager/descriptors/match/match.h"
#include "hooks/imager/descriptors/semaphore_undo.h"

namespace shadowib {
namespace {

using descriptors::describe_queue;
using descriptors::describe_semaphores;
using descriptors::MessageQueue;
using descriptors::Semaphore;
using descriptors::SemaphoreSet;
using descriptors::SystemVHolders;
using descriptors::Tables;

Status failure(const std::string& what, const char* why, int error = errno) {
  return Status::of(Code::kRefused, error, "cannot restore %s: %s%s%s", what.c_str(), why, error != 0 ? ": " : "",
                    error != 0 ? std::strerror(error) : "");
}

// Makes an object of that id. Where ids cannot be chosen they count up from 0.
template <typename Make, typename Remove>
int make_with_id(const char* kind, int id, Make make, Remove remove) {
  const bool chosen = set_next_system_v_id(kind, id);
  for (int tries = 0; tries < kMostIdTries; ++tries) {
    const int made = make();
    if (made < 0 || made == id) return made;
    remove(made);
    if (chosen || made > id) break;
  }
  errno = 0;
  return -1;
}

template <typename T>
void set_owner(const T& object, ipc_perm* owner) {
  owner->mode = static_cast<unsigned short>(object.mode & 0777);
  owner->uid = object.user;
  owner->gid = object.group;
}

union SemctlArgument {
  int value;
  semid_ds* info;
  unsigned short* values;
};

// As a program would have it that looks for the time of the first operation. The value stays.
bool touch(int id, int value) {
  const short by = value < descriptors::kMostSemaphoreValue ? 1 : -1;
  sembuf operations[2] = {{0, by, IPC_NOWAIT}, {0, static_cast<short>(-by), IPC_NOWAIT}};
  return ::semop(id, operations, 2) == 0;
}

Status make_semaphores(const SemaphoreSet& s, int* id) {
  const std::string what = describe_semaphores(s);
  const int mode = static_cast<int>((s.mode & 0777) | 0600);
  *id = make_with_id(
      "sem", s.id,
      [&] { return ::semget(s.key, static_cast<int>(s.semaphores.size()), IPC_CREAT | IPC_EXCL | mode); },
      [](int made) { ::semctl(made, 0, IPC_RMID); });
  if (*id < 0) return failure(what, errno == 0 ? "its id cannot be had" : "semget fails; see kernel.sem");
  std::vector<unsigned short> values;
  for (const Semaphore& one : s.semaphores) values.push_back(one.value);
  SemctlArgument argument{};
  argument.values = values.data();
  if (::semctl(*id, 0, SETALL, argument) != 0) return failure(what, "it cannot have its values");
  if (s.used != 0 && !touch(*id, values[0])) return failure(what, "semop fails");
  semid_ds info{};
  argument.info = &info;
  if (::semctl(*id, 0, IPC_STAT, argument) != 0) return failure(what, "semctl fails");
  set_owner(s, &info.sem_perm);
  // An owner is worth nothing where that user cannot be had.
  if (::semctl(*id, 0, IPC_SET, argument) == 0) return {};
  info.sem_perm.uid = ::geteuid();
  info.sem_perm.gid = ::getegid();
  return ::semctl(*id, 0, IPC_SET, argument) == 0 ? Status() : failure(what, "it cannot have its mode");
}

// A new IPC namespace has the kernel's defaults.
void raise_sysctl(const char* path, std::uint64_t value) {
  std::uint64_t now = 0;
  std::ifstream(path) >> now;
  if (now < value) std::ofstream(path) << value;
}

Status make_queue(const MessageQueue& q) {
  const std::string what = describe_queue(q);
  std::uint64_t longest = 0, held = q.messages.size();
  for (const auto& m : q.messages) {
    longest = std::max<std::uint64_t>(longest, m.data.size());
    held += m.data.size();
  }
  // A program may have lowered the capacity below what the queue held.
  std::uint64_t capacity = std::max<std::uint64_t>(q.capacity, held);
  raise_sysctl("/proc/sys/kernel/msgmnb", capacity);
  raise_sysctl("/proc/sys/kernel/msgmax", longest);
  const int mode = static_cast<int>((q.mode & 0777) | 0600);
  const int id = make_with_id(
      "msg", q.id, [&] { return ::msgget(q.key, IPC_CREAT | IPC_EXCL | mode); },
      [](int made) { ::msgctl(made, IPC_RMID, nullptr); });
  if (id < 0) return failure(what, errno == 0 ? "its id cannot be had" : "msgget fails; see kernel.msgmni");
  msqid_ds info{};
  if (::msgctl(id, IPC_STAT, &info) != 0) return failure(what, "msgctl fails");
  const auto set = [&] {
    info.msg_qbytes = capacity;
    return ::msgctl(id, IPC_SET, &info) == 0;
  };
  if (!set())
    return failure(what,
                   ("its capacity of " + std::to_string(capacity) + " bytes is above kernel.msgmnb here").c_str());
  for (const auto& m : q.messages) {
    std::string buffer(sizeof(long), '\0');
    std::memcpy(buffer.data(), &m.type, sizeof(long));
    buffer += m.data;
    if (::msgsnd(id, buffer.data(), m.data.size(), IPC_NOWAIT) != 0)
      return failure(what, "a message does not fit; see kernel.msgmax");
  }
  capacity = q.capacity;
  set_owner(q, &info.msg_perm);
  if (set()) return {};
  info.msg_perm.uid = ::geteuid();
  info.msg_perm.gid = ::getegid();
  return set() ? Status() : failure(what, "it cannot have its mode");
}

// Of holders, the object that has the lowest id comes first: ids that cannot be chosen count up.
template <typename T>
std::vector<const T*> objects_of(const SystemVHolders<T>& all, const std::set<std::uint32_t>& here) {
  std::vector<const T*> objects;
  for (const auto& [key, holders] : all)
    if (here.contains(holders.front().first->member)) objects.push_back(holders.front().second);
  std::sort(objects.begin(), objects.end(), [](const T* a, const T* b) { return a->id < b->id; });
  return objects;
}

template <typename T>
void bind(const SystemVHolders<T>& all, std::string (*describe)(const T&), const BondSink& sink) {
  for (const auto& [key, holders] : all)
    for (const auto& holder : holders) {
      const auto& first = holders.front();
      if (holder.first == first.first) continue;
      sink({first.first->member, holder.first->member, [&first, &holder, describe] {
              return Status::of(
                  Code::kRefused, 0,
                  "member %u shares %s with member %u: they have to be restarted together, on one machine",
                  first.first->member, describe(*first.second).c_str(), holder.first->member);
            }});
    }
}

}  // namespace

bool set_next_system_v_id(const char* kind, int id) {
  const std::string path = std::string("/proc/sys/kernel/") + kind + "_next_id", text = std::to_string(id);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool set = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(fd);
  return set;
}

Status SystemVPlan::prepare(const OpenedSet& set, const RestartPart& part) {
  Tables tables;
  SHADOWIB_TRY(descriptors::decode_tables(set.tables, &tables));
  const std::set<std::uint32_t> here = indices_of(part);
  const descriptors::SystemVObjects all = descriptors::collect_system_v(tables);
  for (const SemaphoreSet* s : objects_of(all.semaphores, here))
    SHADOWIB_TRY(make_semaphores(*s, &semaphores_[{s->space, s->id}]));
  for (const MessageQueue* q : objects_of(all.queues, here)) SHADOWIB_TRY(make_queue(*q));
  return {};
}

Status SystemVPlan::restore_undo(const std::string& encoded) const {
  if (encoded.empty() || semaphores_.empty()) return {};
  descriptors::Table table;
  SHADOWIB_TRY(descriptors::decode_table(encoded, &table));
  for (const SemaphoreSet& s : table.semaphores) {
    const auto made = semaphores_.find({s.space, s.id});
    if (made == semaphores_.end()) return failure(describe_semaphores(s), "it was not made", 0);
    for (std::size_t n = 0; n < s.semaphores.size(); ++n)
      if (!descriptors::set_undo_of_semaphore(made->second, static_cast<int>(n), s.semaphores[n].value,
                                              s.semaphores[n].adjustment))
        return failure(describe_semaphores(s), "SEM_UNDO cannot be noted again");
  }
  return {};
}

Status find_system_v_bonds(const OpenedSet& set, const BondSink& sink) {
  Tables tables;
  SHADOWIB_TRY(descriptors::decode_tables(set.tables, &tables));
  const descriptors::SystemVObjects all = descriptors::collect_system_v(tables);
  bind(all.semaphores, describe_semaphores, sink);
  bind(all.queues, describe_queue, sink);
  return {};
}

Status judge_system_v_here(const OpenedSet& set, const std::function<void(const Status&)>& obstacle) {
  Tables tables;
  SHADOWIB_TRY(descriptors::decode_tables(set.tables, &tables));
  std::set<std::uint32_t> here;
  for (const MemberImage& m : set.members) here.insert(m.image.header.member);
  const descriptors::SystemVObjects all = descriptors::collect_system_v(tables);
  Status parted;
  bind(all.semaphores, describe_semaphores, first_parted(here, &parted));
  bind(all.queues, describe_queue, first_parted(here, &parted));
  if (!parted.ok()) obstacle(parted);
  // Of a set that an earlier version took: a checkpoint refuses it now.
  if (Status status = descriptors::judge_pid_namespaces(all); !status.ok()) obstacle(status);
  return {};
}

}  // namespace shadowib
