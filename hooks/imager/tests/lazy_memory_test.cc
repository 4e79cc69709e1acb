// What the kernel does to memory that comes later than its program: why `restart --lazy` is refused
// (docs/internals/decisions/no-lazy-memory.md). A kernel that fails one of these tests may let memory come lazily.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace {

constexpr std::size_t kPage = 4096;

// A page of an image, mapped as the program's memory.
class MappedImage {
 public:
  MappedImage() : path_(testing::TempDir() + "lazy_memory_XXXXXX") {
    fd_ = ::mkstemp(path_.data());
    ::unlink(path_.c_str());
    const std::vector<char> content(kPage, 'i');
    if (::write(fd_, content.data(), kPage) == static_cast<ssize_t>(kPage))
      at = static_cast<char*>(::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd_, 0));
  }
  ~MappedImage() {
    ::munmap(at, kPage);
    ::close(fd_);
  }
  bool cut() const { return ::ftruncate(fd_, 0) == 0; }

  char* at = nullptr;

 private:
  std::string path_;
  int fd_;
};

// The way a child that does `what` ends, as waitpid tells it.
template <typename What>
int end_of_child(What what) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGBUS, SIG_DFL);  // a sanitizer has a handler of its own
    ::_exit(what());
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(MemoryMappedFromAnImage, HasTheImagesBytesWhereTheProgramWaitsForZeros) {
  MappedImage image;
  ASSERT_NE(image.at, nullptr);
  *image.at = 'w';
  ASSERT_EQ(::madvise(image.at, kPage, MADV_DONTNEED), 0);
  EXPECT_EQ(*image.at, 'i') << "anonymous memory has a zero there";
}

TEST(MemoryMappedFromAnImage, CannotBeFreed) {
  MappedImage image;
  ASSERT_NE(image.at, nullptr);
  EXPECT_EQ(::madvise(image.at, kPage, MADV_FREE), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(MemoryMappedFromAnImage, LosesWhatTheProgramWroteWhenTheImageIsCut) {
  MappedImage image;
  ASSERT_NE(image.at, nullptr);
  *image.at = 'w';
  ASSERT_TRUE(image.cut());
  const int status = end_of_child([&image] { return *const_cast<volatile char*>(image.at) == 'w' ? 0 : 1; });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS) << status;
}

// A page whose content a user's pager would bring.
class MissingPage {
 public:
  MissingPage() : fd_(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY))) {
    at = static_cast<char*>(::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    uffdio_api api{};
    api.api = UFFD_API;
    uffdio_register range{};
    range.range = {reinterpret_cast<std::uint64_t>(at), kPage};
    range.mode = UFFDIO_REGISTER_MODE_MISSING;
    is_there = fd_ >= 0 && ::ioctl(fd_, UFFDIO_API, &api) == 0 && ::ioctl(fd_, UFFDIO_REGISTER, &range) == 0;
  }
  ~MissingPage() {
    forsake();
    ::munmap(at, kPage);
  }
  // As the end of the pager does.
  void forsake() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  char* at;
  bool is_there;

 private:
  int fd_;
};

constexpr char kNoPagers[] = "this place has no userfaultfd for users";

TEST(AUsersPager, IsNotAskedBySystemCalls) {
  MissingPage page;
  if (!page.is_there) GTEST_SKIP() << kNoPagers;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "x", 1), 1);
  EXPECT_EQ(::read(ends[0], page.at, 1), -1);
  EXPECT_EQ(errno, EFAULT);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(AUsersPager, IsNotAskedByAForkedChild) {
  MissingPage page;
  if (!page.is_there) GTEST_SKIP() << kNoPagers;
  const int status = end_of_child([&page] { return *const_cast<volatile char*>(page.at); });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child reads a zero: " << status;
}

TEST(AUsersPager, LeavesZerosWhenItEnds) {
  MissingPage page;
  if (!page.is_there) GTEST_SKIP() << kNoPagers;
  page.forsake();
  EXPECT_EQ(*const_cast<volatile char*>(page.at), 0);
}

}  // namespace
