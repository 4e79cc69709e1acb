// DescriptorPlan: shared descriptors are made once in the command; each member's process puts its own at their
// numbers.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/capture/late.h"
#include "hooks/imager/descriptors/remake/restore.h"
#include "shadowib/base/log.h"
#include "shadowib/base/processes.h"

namespace shadowib {

struct DescriptorPlan::Impl {
  descriptors::Plan plan;
};

namespace descriptors {
namespace {

// Room for all members' descriptors at once. Children inherit it; their own limit is the imager's to restore.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Puts descriptors at wanted numbers, in ascending order; whatever is needed later and in the way moves up.
class Placement {
 public:
  // Each int in `keep` is a descriptor to survive at any number.
  Placement(std::vector<Descriptor> targets, std::vector<int> sources, std::vector<int*> keep)
      : targets_(std::move(targets)), sources_(std::move(sources)), keep_(std::move(keep)) {}

  Status run() {
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      const Descriptor& target = targets_[i];
      SHADOWIB_TRY(clear(target.fd, i));
      int source = sources_[target.object];
      int placed = source == target.fd ? ::fcntl(source, F_SETFD, target.close_on_exec ? FD_CLOEXEC : 0)
                                       : ::dup3(source, target.fd, target.close_on_exec ? O_CLOEXEC : 0);
      if (placed < 0)
        return Status::of(Code::kInternal, errno, "cannot place descriptor %d (%s); raise RLIMIT_NOFILE", target.fd,
                          std::strerror(errno));
      sources_[target.object] = target.fd;  // later numbers of the same object are dups of this one
    }
    close_others();
    return {};
  }

 private:
  // If `number` holds something still needed, other than what belongs there, it moves above.
  Status clear(int number, std::size_t position) {
    int moved = -1;
    auto move = [&] {
      if (moved < 0) moved = ::fcntl(number, F_DUPFD_CLOEXEC, std::max(number, targets_.back().fd) + 1);
      if (moved < 0) moved = ::fcntl(number, F_DUPFD_CLOEXEC, number + 1);
      return moved >= 0;
    };
    for (std::size_t object = 0; object < sources_.size(); ++object)
      if (sources_[object] == number && targets_[position].object != object && still_needed(object, position)) {
        if (!move()) return no_room(number);
        sources_[object] = moved;
      }
    for (int* kept : keep_)
      if (*kept == number) {
        if (!move()) return no_room(number);
        *kept = moved;
      }
    return {};
  }

  bool still_needed(std::size_t object, std::size_t position) const {
    return std::any_of(targets_.begin() + static_cast<long>(position), targets_.end(),
                       [&](const Descriptor& d) { return d.object == object; });
  }

  static Status no_room(int number) {
    return Status::of(Code::kRefused, errno, "no number free to move descriptor %d to; raise the hard RLIMIT_NOFILE",
                      number);
  }

  void close_others() {
    std::vector<int> survivors;
    for (const Descriptor& d : targets_) survivors.push_back(d.fd);
    for (int* kept : keep_) survivors.push_back(*kept);
    close_all_but(std::move(survivors));
  }

  std::vector<Descriptor> targets_;
  std::vector<int> sources_;  // by object
  std::vector<int*> keep_;
};

// SIGIO. An owner that is a thread does not exist yet (late.h).
void restore_signal_owner(int fd, const Object& o) {
  if (o.owner_type != F_OWNER_TID) set_signal_owner(fd, o.owner_type, o.owner_pid);
  if (o.signal != 0) ::fcntl(fd, F_SETSIG, o.signal);
  if ((o.flags & O_ASYNC) != 0) ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_ASYNC);
}

Status collect_sources(const Plan& plan, const Table& table, std::vector<int>* sources) {
  for (const Object& o : table.objects) {
    auto made = plan.sources.find(&o);
    int fd = made == plan.sources.end() ? -1 : made->second;
    if (fd < 0) SHADOWIB_TRY(open_in_member(o, &fd));
    sources->push_back(fd);
  }
  return {};
}

Status prepare_all(Plan* plan) {
  SHADOWIB_TRY(restore_standard_streams(plan));
  SHADOWIB_TRY(restore_files(plan));
  SHADOWIB_TRY(restore_pipes(plan));
  SHADOWIB_TRY(restore_ptys(plan));
  SHADOWIB_TRY(restore_eventfds(plan));
  SHADOWIB_TRY(restore_unix(plan));
  SHADOWIB_TRY(restore_tcp(plan));
  return restore_datagram_sockets(plan);
}

}  // namespace
}  // namespace descriptors

DescriptorPlan::DescriptorPlan() : impl_(new Impl) {}
DescriptorPlan::~DescriptorPlan() {
  release();
  delete impl_;
}

Status DescriptorPlan::prepare(const std::map<std::uint32_t, std::string>& tables,
                               const std::set<std::uint32_t>& here, Meeting* meeting, const MemoryFiles& memory) {
  descriptors::Plan& plan = impl_->plan;
  plan.meeting = meeting;
  plan.memory = memory;
  SHADOWIB_TRY(descriptors::decode_tables(tables, &plan.tables));
  SHADOWIB_TRY(descriptors::link_tables(plan.tables, &plan.links));
  descriptors::raise_descriptor_limit();
  for (int stream = 0; stream < 3; ++stream) {
    plan.standard[stream] = ::fcntl(stream, F_DUPFD_CLOEXEC, 3);
    if (plan.standard[stream] >= 0) plan.own(plan.standard[stream]);
  }
  Status status = descriptors::keep_members(here, &plan);
  if (status.ok()) status = descriptors::prepare_all(&plan);
  if (!status.ok()) release();
  return status;
}

Status DescriptorPlan::install(std::uint32_t member, std::vector<int*> keep) {
  using namespace descriptors;
  const Plan& plan = impl_->plan;
  auto at = plan.tables.find(member);
  if (at == plan.tables.end()) return Status::of(Code::kUsage, 0, "no descriptor table of member %u", member);
  const Table& table = at->second;
  std::vector<int> sources;
  SHADOWIB_TRY(collect_sources(plan, table, &sources));
  SHADOWIB_TRY(Placement(table.descriptors, sources, std::move(keep)).run());
  // The command's numbers mean something else, or nothing, in this process from here on.
  impl_->plan.owned.clear();
  impl_->plan.sources.clear();
  for (std::uint32_t i = 0; i < table.objects.size(); ++i) restore_signal_owner(table.first_fd(i), table.objects[i]);
  return fill_epoll_sets(table);
}

int DescriptorPlan::controlling_terminal(std::uint32_t member, int* foreground) const {
  const auto at = impl_->plan.tables.find(member);
  if (at == impl_->plan.tables.end()) return -1;
  const descriptors::Table& table = at->second;
  const auto terminal = impl_->plan.terminals.find({table.kernel, table.terminal_device, table.terminal});
  *foreground = table.foreground;
  return terminal == impl_->plan.terminals.end() ? -1 : terminal->second;
}

bool has_pseudo_terminals(const std::map<std::uint32_t, std::string>& encoded) {
  descriptors::Tables tables;
  if (!descriptors::decode_tables(encoded, &tables).ok()) return false;
  for (const auto& [member, table] : tables)
    for (const descriptors::Object& o : table.objects)
      if (o.kind == descriptors::Kind::kPty) return true;
  return false;
}

void DescriptorPlan::release() {
  for (int fd : impl_->plan.owned) ::close(fd);
  impl_->plan.owned.clear();
  impl_->plan.sources.clear();
}

}  // namespace shadowib
