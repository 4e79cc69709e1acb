// Memory of every kind of content, for images whose pages are compressed (IMAGER_TEST_COMPRESS).
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "hooks/imager/tests/subject.h"

using namespace shadowib::test;

namespace {

constexpr std::size_t kPageBytes = 4096, kPageWords = kPageBytes / 8, kHuge = 2 << 20;

// Of a word by its page and place; any generator that does not repeat will do.
std::uint64_t noise(std::uint64_t page, std::uint64_t word) {
  std::uint64_t x = page * kPageWords + word + 1;
  x ^= x >> 30, x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27, x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

using Content = std::uint64_t (*)(std::uint64_t page, std::uint64_t word);

std::uint64_t zeros(std::uint64_t, std::uint64_t) { return 0; }
std::uint64_t constant(std::uint64_t page, std::uint64_t) { return 0x2020202020202020ull + page / 64; }
std::uint64_t halves(std::uint64_t page, std::uint64_t word) {
  return word < kPageWords / 2 ? noise(page, word) : page % 7;
}
// Each few pages of another kind, zeros among them.
std::uint64_t mixed(std::uint64_t page, std::uint64_t word) {
  const Content kinds[] = {noise, zeros, constant, halves};
  return kinds[page / 3 % 4](page, word);
}

struct Region {
  std::uint64_t* at;
  std::size_t bytes;
  Content content;

  void write() const {
    for (std::size_t i = 0; i < bytes / 8; ++i) at[i] = content(i / kPageWords, i % kPageWords);
  }
  void check() const {
    for (std::size_t i = 0; i < bytes / 8; ++i) CHECK_THAT(at[i] == content(i / kPageWords, i % kPageWords));
  }
};

// Between two pages that are not there, so that it is a mapping of its own.
Region make(std::size_t bytes, Content content, int flags = MAP_PRIVATE) {
  void* map = ::mmap(nullptr, bytes + 2 * kPageBytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  CHECK_THAT(map != MAP_FAILED);
  auto* at = static_cast<std::uint8_t*>(map);
  CHECK_THAT(::munmap(at, kPageBytes) == 0 && ::munmap(at + kPageBytes + bytes, kPageBytes) == 0);
  const Region region{reinterpret_cast<std::uint64_t*>(at + kPageBytes), bytes, content};
  region.write();
  return region;
}

// Two of 2 MiB, if the kernel has them.
Region make_huge(Content content) {
  auto* map = static_cast<std::uint8_t*>(
      ::mmap(nullptr, 3 * kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CHECK_THAT(map != MAP_FAILED);
  auto* at = reinterpret_cast<std::uint8_t*>((reinterpret_cast<std::uintptr_t>(map) + kHuge - 1) & ~(kHuge - 1));
  ::madvise(at, 2 * kHuge, MADV_HUGEPAGE);
  const Region region{reinterpret_cast<std::uint64_t*>(at), 2 * kHuge, content};
  region.write();
  return region;
}

// Content of a file, of which the process has changed some pages.
Region make_of_file(const char* name, Content content) {
  constexpr std::size_t kBytes = 64 * kPageBytes;
  const int fd = ::open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  CHECK_THAT(fd >= 0 && ::ftruncate(fd, kBytes) == 0);
  void* shared = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK_THAT(shared != MAP_FAILED);
  Region{static_cast<std::uint64_t*>(shared), kBytes, content}.write();
  CHECK_THAT(::munmap(shared, kBytes) == 0);
  void* own = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  CHECK_THAT(own != MAP_FAILED && ::close(fd) == 0);
  const Region region{static_cast<std::uint64_t*>(own), kBytes, content};
  for (std::size_t page = 10; page < 30; ++page) region.at[page * kPageWords] = content(page, 0);
  return region;
}

}  // namespace

SCENARIO(compressed) {
  std::vector<Region> regions;
  for (const Content content : {zeros, constant, halves, mixed, noise})
    for (const std::size_t pages : {1u, 2u, 3u, 254u, 255u, 700u})
      regions.push_back(make(pages * kPageBytes, content));
  for (const Content content : {halves, noise}) regions.push_back(make_huge(content));
  regions.push_back(make(300 * kPageBytes, halves, MAP_SHARED));
  // Not to be read directly.
  const Region hidden = make(300 * kPageBytes, mixed);
  CHECK_THAT(::mprotect(hidden.at, hidden.bytes, PROT_NONE) == 0);
  const char* file = std::getenv("IMAGER_TEST_FILE");
  if (file != nullptr) regions.push_back(make_of_file(file, mixed));
  save_and_end();
  CHECK_THAT(::mprotect(hidden.at, hidden.bytes, PROT_READ) == 0);
  hidden.check();
  for (const Region& region : regions) region.check();
}

// Some pages change each time: pages of one frame come from several images.
SCENARIO(compressed_again) {
  constexpr std::size_t kPages = 600;
  const Region memory = make(kPages * kPageBytes, halves);
  std::vector<std::uint64_t> first(kPages);
  for (std::size_t page = 0; page < kPages; ++page) first[page] = memory.at[page * kPageWords];
  for (std::uint32_t round = 0; round < 6; ++round) {
    if (save()) {
      for (std::size_t page = 0; page < kPages; ++page) {
        CHECK_THAT(memory.at[page * kPageWords] == first[page]);
        memory.at[page * kPageWords] = halves(page, 0);
      }
      memory.check();
      ::_exit(42);
    }
    for (std::size_t page = round; page < kPages; page += 37)
      memory.at[page * kPageWords] = first[page] = noise(page + 1000 * round, 7);
  }
  ::_exit(10);
}

// As many pages as make a frame of two records, and little else: what a test changes is here.
SCENARIO(compressed_pages) {
  const Region memory = make(400 * kPageBytes, halves);
  save_and_end();
  memory.check();
}
