// Questions to files of /proc that newer kernels answer: include/uapi/linux/fs.h, which older headers do not have.
// A kernel that does not know one answers ENOTTY.
#pragma once

#include <linux/ioctl.h>

#include <cstdint>

namespace shadowib {

// The pages of a range, to /proc/PID/pagemap. Linux 6.7.
struct PageRegion {
  std::uint64_t start, end, categories;
};
struct PmScanArg {
  std::uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  std::uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
inline constexpr unsigned long kPagemapScan = _IOWR('f', 16, PmScanArg);

// The next mapping of a kind, to /proc/PID/maps. Linux 6.11.
struct ProcmapQuery {
  std::uint64_t size, query_flags, query_addr;
  std::uint64_t vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode;
  std::uint32_t dev_major, dev_minor, vma_name_size, build_id_size;
  std::uint64_t vma_name_addr, build_id_addr;
};
inline constexpr unsigned long kProcmapQuery = _IOWR('f', 17, ProcmapQuery);

}  // namespace shadowib
