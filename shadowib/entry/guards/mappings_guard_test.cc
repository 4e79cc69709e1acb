#include <errno.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/shm.h>

#include <string>

#include "shadowib/base/memory_watch.h"

namespace shadowib {
namespace {

constexpr std::size_t kBytes = 1 << 16;
char* g_memory = nullptr;
std::string g_heard;

// "gone 0+65536": about the mapping of the test.
void hear(const void* address, std::size_t bytes, MemoryChange change) {
  static const char* const kNames[] = {"usable", "read-only", "protected", "gone", "kept", "went"};
  const char* at = static_cast<const char*>(address);
  if (at + bytes <= g_memory || at >= g_memory + kBytes) return;
  if (!g_heard.empty()) g_heard += ", ";
  g_heard += std::string(kNames[static_cast<int>(change)]) + " " + std::to_string(at - g_memory) + "+" +
             std::to_string(bytes);
}

class MappingsGuard : public ::testing::Test {
 protected:
  void SetUp() override {
    g_memory = map(nullptr, 0);
    ASSERT_NE(g_memory, MAP_FAILED);
    g_heard.clear();
    g_memory_watch.store(hear);
  }
  void TearDown() override {
    g_memory_watch.store(nullptr);
    ::munmap(g_memory, kBytes);
  }
  static char* map(void* at, int flags) {
    return static_cast<char*>(::mmap(at, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0));
  }
  // Of a hole that a test leaves: TearDown() unmaps all of g_memory, which is to be nobody else's.
  static void fill(std::size_t offset, std::size_t bytes) {
    char* const hole = g_memory + offset;
    EXPECT_EQ(::mmap(hole, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0), hole);
  }
};

TEST_F(MappingsGuard, TellsOfUnmapping) {
  EXPECT_EQ(::munmap(g_memory + 4096, 8192), 0);
  EXPECT_EQ(g_heard, "gone 4096+8192, went 4096+8192");
  fill(4096, 8192);
}

TEST_F(MappingsGuard, TakesBackWhatFailed) {
  EXPECT_EQ(::munmap(g_memory + 1, 4096), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(g_heard, "gone 1+4096, kept 1+4096, went 1+4096");
}

TEST_F(MappingsGuard, TellsOfProtections) {
  EXPECT_EQ(::mprotect(g_memory, 4096, PROT_READ), 0);
  EXPECT_EQ(::mprotect(g_memory, 4096, PROT_NONE), 0);
  EXPECT_EQ(::mprotect(g_memory, 4096, PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(g_heard, "read-only 0+4096, protected 0+4096, usable 0+4096");
}

TEST_F(MappingsGuard, TellsOfReplacing) {
  EXPECT_EQ(map(g_memory, MAP_FIXED), g_memory);
  EXPECT_EQ(map(g_memory, MAP_FIXED_NOREPLACE), MAP_FAILED);
  EXPECT_EQ(g_heard, "gone 0+65536, went 0+65536");
}

TEST_F(MappingsGuard, TellsOfMoving) {
  char* const there = map(nullptr, 0);
  EXPECT_EQ(::mremap(g_memory, kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, there), there);
  EXPECT_EQ(g_heard, "gone 0+65536, went 0+65536");
  EXPECT_EQ(::munmap(there, kBytes), 0);
  fill(0, kBytes);
}

TEST_F(MappingsGuard, KeepsWhatShrinkingLeaves) {
  EXPECT_EQ(::mremap(g_memory, kBytes, 4096, 0), g_memory);
  EXPECT_EQ(g_heard, "gone 0+65536, kept 0+4096, went 0+65536");
  fill(4096, kBytes - 4096);
}

TEST_F(MappingsGuard, TellsOfSharedMemorySegments) {
  const int id = ::shmget(IPC_PRIVATE, kBytes, IPC_CREAT | 0600);
  ASSERT_GE(id, 0);
  EXPECT_EQ(::shmat(id, g_memory, SHM_REMAP), g_memory);
  EXPECT_EQ(::shmctl(id, IPC_RMID, nullptr), 0);
  EXPECT_EQ(g_heard, "gone 0+65536, went 0+65536");
  g_heard.clear();
  EXPECT_EQ(::shmdt(g_memory), 0);
  EXPECT_EQ(g_heard, "gone 0+65536, went 0+65536");
  fill(0, kBytes);
}

// The program has changed it page by page, and so it is several mappings.
TEST_F(MappingsGuard, TellsOfAllPiecesOfASegment) {
  const int id = ::shmget(IPC_PRIVATE, kBytes, IPC_CREAT | 0600);
  ASSERT_GE(id, 0);
  EXPECT_EQ(::shmat(id, g_memory, SHM_REMAP), g_memory);
  EXPECT_EQ(::shmctl(id, IPC_RMID, nullptr), 0);
  EXPECT_EQ(::munmap(g_memory, 4096), 0);
  EXPECT_EQ(::mprotect(g_memory + 8192, 4096, PROT_READ), 0);
  char* const other = g_memory + 0x8000;  // no piece of it
  EXPECT_EQ(::mmap(other, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), other);
  g_heard.clear();
  EXPECT_EQ(::shmdt(g_memory), 0);
  EXPECT_EQ(g_heard, "gone 4096+4096, gone 8192+4096, gone 12288+20480, gone 36864+28672, went 4096+61440");
  g_heard.clear();
  EXPECT_EQ(::shmdt(g_memory), -1);
  EXPECT_EQ(g_heard, "");
  fill(0, 0x8000);
  fill(0x9000, kBytes - 0x9000);
}

TEST_F(MappingsGuard, KeepsTheTargetOfAMoveThatFails) {
  char* const elsewhere = map(nullptr, 0);
  // The kernel wants a page's address.
  EXPECT_EQ(::mremap(elsewhere, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, g_memory + 1), MAP_FAILED);
  EXPECT_EQ(g_heard, "gone 1+4096, kept 1+4096, went 1+4096");
  EXPECT_EQ(::munmap(elsewhere, kBytes), 0);
}

TEST_F(MappingsGuard, KeepsOnlyWhatIsStillMapped) {
  EXPECT_EQ(::munmap(g_memory + 4096, 4096), 0);
  g_heard.clear();
  EXPECT_EQ(::munmap(g_memory + 1, 12288), -1);
  EXPECT_EQ(g_heard, "gone 1+12288, kept 1+4095, kept 8192+4097, went 1+12288");
  fill(4096, 4096);
}

}  // namespace
}  // namespace shadowib
