// The part of the restorer that takes the recorded users, groups, capabilities and limits.
#include <linux/capability.h>
#include <linux/prctl.h>
#include <linux/securebits.h>

#include "hooks/imager/restorer/steps.h"

namespace shadowib::restorer {
namespace {

// Setting them to what they are gives the thread credentials of its own; see capabilities_are_right.
void restore_file_system_ids(const ProcessRecord& p) {
  if (p.gid[3] != p.gid[1]) raw::invoke(__NR_setfsgid, p.gid[3]);
  if (p.uid[3] != p.uid[1]) raw::invoke(__NR_setfsuid, p.uid[3]);
}

void restore_identity(RestorerArgs* args) {
  const ProcessRecord& p = *args->process;
  if (args->set_identity == 0) return restore_file_system_ids(p);
  check(args, RestoreStep::kIdentity, raw::invoke(__NR_prctl, PR_SET_KEEPCAPS, 1, 0, 0, 0), 0);
  check(args, RestoreStep::kIdentity, raw::invoke(__NR_setgroups, p.group_count, p.groups), 0);
  check(args, RestoreStep::kIdentity, raw::invoke(__NR_setresgid, p.gid[0], p.gid[1], p.gid[2]), p.gid[0]);
  check(args, RestoreStep::kIdentity, raw::invoke(__NR_setresuid, p.uid[0], p.uid[1], p.uid[2]), p.uid[0]);
  restore_file_system_ids(p);
}

std::uint64_t both(std::uint32_t low, std::uint32_t high) { return low | static_cast<std::uint64_t>(high) << 32; }

// Threads share one set of credentials in the kernel until one of them changes its own, even to the same, and then
// others may not write to what it has opened (/dev/infiniband/uverbsN asks for the very set). So what is right is
// left alone, and what is not is changed before there are other threads, if that can be.
bool capabilities_are_right(const ProcessRecord& p, const __user_cap_data_struct (&data)[2]) {
  const std::uint64_t permitted = both(data[0].permitted, data[1].permitted);
  const std::uint64_t keep = permitted & p.capabilities[1];
  if (keep != permitted || both(data[0].effective, data[1].effective) != (keep & p.capabilities[2]) ||
      both(data[0].inheritable, data[1].inheritable) != (keep & p.capabilities[0]) ||
      p.secure_bits != static_cast<std::uint32_t>(raw::invoke(__NR_prctl, PR_GET_SECUREBITS, 0, 0, 0, 0)))
    return false;
  for (unsigned cap = 0; cap < 64; ++cap) {
    const std::uint64_t bit = 1ull << cap;
    if ((p.capabilities[3] & bit) == 0 && raw::invoke(__NR_prctl, PR_CAPBSET_READ, cap, 0, 0, 0) == 1) return false;
    if ((p.capabilities[4] & keep & p.capabilities[0] & bit) != 0 &&
        raw::invoke(__NR_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, cap, 0, 0) != 1)
      return false;
  }
  return true;
}

// Drops to the recorded sets; never gains.
void restore_capabilities(RestorerArgs* args) {
  const ProcessRecord& p = *args->process;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  check(args, RestoreStep::kCapabilities, raw::invoke(__NR_capget, &header, data), 0);
  if (capabilities_are_right(p, data)) return;
  const std::uint64_t permitted = both(data[0].permitted, data[1].permitted);
  // After a change of user the permitted set is kept and the effective one is empty: take it up to drop bounds.
  data[0].effective = data[0].permitted;
  data[1].effective = data[1].permitted;
  raw::invoke(__NR_capset, &header, data);
  for (unsigned cap = 0; cap < 64; ++cap)
    if ((p.capabilities[3] & 1ull << cap) == 0) raw::invoke(__NR_prctl, PR_CAPBSET_DROP, cap, 0, 0, 0);
  const std::uint64_t keep = permitted & p.capabilities[1];
  const std::uint64_t effective = keep & p.capabilities[2], inheritable = keep & p.capabilities[0];
  for (int half = 0; half < 2; ++half) {
    data[half].permitted = static_cast<std::uint32_t>(keep >> (32 * half));
    data[half].effective = static_cast<std::uint32_t>(effective >> (32 * half));
    data[half].inheritable = static_cast<std::uint32_t>(inheritable >> (32 * half));
  }
  if (p.secure_bits != static_cast<std::uint32_t>(raw::invoke(__NR_prctl, PR_GET_SECUREBITS, 0, 0, 0, 0)))
    raw::invoke(__NR_prctl, PR_SET_SECUREBITS, p.secure_bits, 0, 0, 0);
  check(args, RestoreStep::kCapabilities, raw::invoke(__NR_capset, &header, data), 0);
  const std::uint32_t keeps = (p.secure_bits & SECBIT_KEEP_CAPS) != 0;
  if (static_cast<std::uint32_t>(raw::invoke(__NR_prctl, PR_GET_KEEPCAPS, 0, 0, 0, 0)) != keeps)
    raw::invoke(__NR_prctl, PR_SET_KEEPCAPS, keeps, 0, 0, 0);
  for (unsigned cap = 0; cap < 64; ++cap)
    if ((p.capabilities[4] & inheritable & 1ull << cap) != 0)
      raw::invoke(__NR_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0);
}

bool credentials_are_right(const RestorerArgs& args) {
  const ProcessRecord& p = *args.process;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  return args.set_identity == 0 && p.gid[3] == p.gid[1] && p.uid[3] == p.uid[1] &&
         raw::invoke(__NR_capget, &header, data) == 0 && capabilities_are_right(p, data);
}

}  // namespace

void restore_credentials(RestorerArgs* args) {
  restore_identity(args);
  restore_capabilities(args);
}

void restore_limits(const ProcessRecord& p) {
  for (std::uint64_t resource = 0; resource < 16; ++resource) {
    std::uint64_t limit[2] = {p.limits[resource][0], p.limits[resource][1]}, now[2] = {};
    if (raw::invoke(__NR_prlimit64, 0, resource, limit, nullptr) == 0) continue;
    // A hard limit cannot be raised without privilege: take what there is.
    raw::invoke(__NR_prlimit64, 0, resource, nullptr, now);
    limit[1] = now[1];
    if (limit[0] > limit[1]) limit[0] = limit[1];
    raw::invoke(__NR_prlimit64, 0, resource, limit, nullptr);
  }
}

// While this is the only thread: those it makes share its credentials. Limits first, which may need privilege to be
// raised.
void take_credentials(RestorerArgs* args) {
  args->has_credentials = credentials_are_right(*args);
  if (args->has_credentials != 0 || args->numbers_are_given == 0) return;
  restore_limits(*args->process);
  restore_credentials(args);
  args->has_credentials = args->asks_for_numbers = 1;
}

}  // namespace shadowib::restorer
