// The states of a mapping that /proc/self/smaps lists as VmFlags, and the fate of each in a restart.
//
// The table names every flag of Linux 6.19 on x86-64. A mapping with a flag that is not here is refused.
#pragma once

#include <cstdint>

#include "hooks/imager/image_format.h"

namespace shadowib {

enum class FlagFate : std::uint8_t {
  kMade,      // follows from how the restorer makes the mapping
  kRestored,  // set again by the restorer
  kHarmless,  // the program cannot tell whether it is there
  kDevice,    // refused, but for mappings of the kernel's own that are left out
  kRefused,
};

struct VmFlag {
  char name[3];
  FlagFate fate;
  std::uint32_t advice;  // MappingAdvice of a restored flag
  const char* what;      // kRefused: what the mapping is; else a remark
  const char* remedy;    // kRefused
};

inline constexpr VmFlag kVmFlags[] = {
    {"rd", FlagFate::kMade, 0, "PROT_READ", ""},
    {"wr", FlagFate::kMade, 0, "PROT_WRITE", ""},
    {"ex", FlagFate::kMade, 0, "PROT_EXEC", ""},
    {"sh", FlagFate::kMade, 0, "MAP_SHARED", ""},
    {"mr", FlagFate::kMade, 0, "by the mode in which the file is opened", ""},
    {"mw", FlagFate::kMade, 0, "by the mode in which the file is opened", ""},
    {"me", FlagFate::kMade, 0, "by the mount the file is on", ""},
    {"ms", FlagFate::kMade, 0, "MAP_SHARED", ""},
    {"gd", FlagFate::kMade, 0, "MAP_GROWSDOWN", ""},
    {"nr", FlagFate::kMade, 0, "MAP_NORESERVE", ""},
    {"ac", FlagFate::kHarmless, 0, "accounted, which private memory is once it is writable", ""},
    {"lo", FlagFate::kRestored, kAdviceLocked, "mlock2", ""},
    {"lf", FlagFate::kRestored, kAdviceLockOnFault, "mlock2, MLOCK_ONFAULT", ""},
    {"sr", FlagFate::kRestored, kAdviceSequential, "MADV_SEQUENTIAL", ""},
    {"rr", FlagFate::kRestored, kAdviceRandom, "MADV_RANDOM", ""},
    {"dc", FlagFate::kRestored, kAdviceDontFork, "MADV_DONTFORK", ""},
    {"dd", FlagFate::kRestored, kAdviceDontDump, "MADV_DONTDUMP", ""},
    {"wf", FlagFate::kRestored, kAdviceWipeOnFork, "MADV_WIPEONFORK", ""},
    {"hg", FlagFate::kRestored, kAdviceHugePage, "MADV_HUGEPAGE", ""},
    {"nh", FlagFate::kRestored, kAdviceNoHugePage, "MADV_NOHUGEPAGE", ""},
    {"mg", FlagFate::kRestored, kAdviceMergeable, "MADV_MERGEABLE", ""},
    {"dp", FlagFate::kRestored, kAdviceDroppable, "MAP_DROPPABLE", ""},
    {"sl", FlagFate::kRestored, kAdviceSealed, "mseal", ""},
    {"gu", FlagFate::kHarmless, 0, "may have guard regions: the scan of pages finds and the restorer installs them",
     ""},
    {"sd", FlagFate::kHarmless, 0, "soft-dirty: restored pages are dirty", ""},
    {"de", FlagFate::kHarmless, 0, "VM_DONTEXPAND: of mappings that are refused or left out by their kind", ""},
    {"mm", FlagFate::kHarmless, 0, "VM_MIXEDMAP: of files on DAX, whose content is read like others'", ""},
    {"ar", FlagFate::kHarmless, 0, "VM_PAT: of device memory, refused by io and pf", ""},
    {"io", FlagFate::kDevice, 0, "device memory", ""},
    {"pf", FlagFate::kDevice, 0, "device memory", ""},
    {"ht", FlagFate::kRefused, 0, "it lies in hugetlb pages", "; use transparent huge pages"},
    {"sf", FlagFate::kRefused, 0, "it is mapped with MAP_SYNC", "; map it without, and call msync"},
    {"um", FlagFate::kRefused, 0, "it is registered with a userfaultfd",
     "; unregister it, or close the userfaultfd, before the checkpoint"},
    {"uw", FlagFate::kRefused, 0, "it is write-protected by a userfaultfd",
     "; unregister it, or close the userfaultfd, before the checkpoint"},
    {"ui", FlagFate::kRefused, 0, "it is registered with a userfaultfd",
     "; unregister it, or close the userfaultfd, before the checkpoint"},
    {"ss", FlagFate::kRefused, 0, "it is a shadow stack",
     "; start the program with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off"},
};

// The flag of that name, two letters; nullptr if it is in no table.
constexpr const VmFlag* find_vm_flag(const char* name) {
  for (const VmFlag& f : kVmFlags)
    if (f.name[0] == name[0] && f.name[1] == name[1]) return &f;
  return nullptr;
}

}  // namespace shadowib
