// What the kernel keeps for a process's memory, besides the mappings.
#include <asm/prctl.h>
#include <linux/membarrier.h>
#include <linux/prctl.h>

#include "hooks/imager/save/process_state.h"
#include "hooks/raw/text.h"
#include "hooks/raw/x86_64/raw_syscall.h"

#ifndef PR_GET_MDWE
#define PR_GET_MDWE 66
#endif
#ifndef PR_GET_MEMORY_MERGE
#define PR_GET_MEMORY_MERGE 68
#endif

namespace shadowib {
namespace {

constexpr int kGetRegistrations = 1 << 9;  // MEMBARRIER_CMD_GET_REGISTRATIONS

std::uint32_t option(int which) {
  const long value = raw::invoke(__NR_prctl, which, 0, 0, 0, 0);
  return value > 0 ? static_cast<std::uint32_t>(value) : 0;
}

std::int32_t read_autogroup_nice() {
  constexpr char kWord[] = " nice ";
  char text[64];
  if (read_small_file("/proc/self/autogroup", text, sizeof(text)) <= 0) return 0;
  for (const char* at = text; *at != '\0'; ++at) {
    const char* word = kWord;
    const char* c = at;
    while (*word != '\0' && *c == *word) ++c, ++word;
    if (*word != '\0') continue;
    const bool negative = *c == '-';
    if (negative) ++c;
    const auto value = static_cast<std::int32_t>(parse_number(&c, 10));
    return negative ? -value : value;
  }
  return 0;
}

}  // namespace

std::uint32_t read_memory_barriers(bool kernel_tells) {
  if (kernel_tells)
    if (const long made = raw::invoke(__NR_membarrier, kGetRegistrations, 0, 0); made >= 0)
      return static_cast<std::uint32_t>(made);
  if (raw::failed(raw::invoke(__NR_membarrier, MEMBARRIER_CMD_QUERY, 0, 0))) return 0;
  constexpr struct {
    int command, registration;
  } kPrivate[] = {{MEMBARRIER_CMD_PRIVATE_EXPEDITED, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED},
                  {MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE},
                  {MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ}};
  // The global registration cannot be tried. One too many does no harm: others' barriers reach this process, too.
  std::uint32_t made = MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
  for (const auto& [command, registration] : kPrivate)
    if (raw::invoke(__NR_membarrier, command, 0, 0) == 0) made |= static_cast<std::uint32_t>(registration);
  return made;
}

void read_memory_state(ProcessRecord* p) {
  char text[32];
  if (read_small_file("/proc/self/coredump_filter", text, sizeof(text)) > 0) {
    const char* at = text;
    p->has_core_dump_filter = 1;
    p->core_dump_filter = static_cast<std::uint32_t>(parse_number(&at, 16));
  }
  p->memory_barriers = read_memory_barriers();
  p->denied_execution = option(PR_GET_MDWE);
  p->merges_memory = option(PR_GET_MEMORY_MERGE);
  p->autogroup_nice = read_autogroup_nice();
  if (raw::failed(raw::invoke(__NR_arch_prctl, ARCH_GET_XCOMP_PERM, &p->state_permission))) p->state_permission = 0;
}

}  // namespace shadowib
