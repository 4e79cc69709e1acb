// A library in a link namespace of its own opens nothing that could be taken for the program's.
#include "shadowib/objects/foreign_library.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

class ForeignLibrary : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    beside_ = ::dlmopen(LM_ID_NEWLM, BESIDE, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(beside_, nullptr) << ::dlerror();
    library_ = open_foreign_library(beside_, FOREIGN);
    ASSERT_NE(library_, nullptr) << ::dlerror();
  }
  template <typename R, typename... Args>
  static R call(const char* name, Args... args) {
    auto function = reinterpret_cast<R (*)(Args...)>(::dlsym(library_, name));
    EXPECT_NE(function, nullptr) << name;
    return function(args...);
  }
  static void* handler_of(int number) {
    struct sigaction now {};
    EXPECT_EQ(::sigaction(number, nullptr, &now), 0);
    return reinterpret_cast<void*>(now.sa_handler);
  }
  inline static void* beside_ = nullptr;
  inline static void* library_ = nullptr;
};

TEST_F(ForeignLibrary, OwnsWhatItOpensAndClosesNothingElse) {
  const int fd = call<int>("foreign_socket");
  EXPECT_TRUE(is_owned_descriptor(fd));
  EXPECT_EQ(call<int>("foreign_close", fd), 0);
  EXPECT_FALSE(is_owned_descriptor(fd));
  int programs[2];
  ASSERT_EQ(::pipe(programs), 0);
  EXPECT_EQ(call<int>("foreign_close", programs[0]), EBADF);
  EXPECT_GE(::fcntl(programs[0], F_GETFD), 0);
  const int ours = UnownedDescriptors().own(programs[1]);
  EXPECT_EQ(call<int>("foreign_close", ours), EBADF);
  EXPECT_TRUE(is_owned_descriptor(ours));
  close_owned_descriptor(ours);
  ::close(programs[0]);
}

TEST_F(ForeignLibrary, CannotCloseAfterARestartWhatItOpenedBefore) {
  const int fd = call<int>("foreign_socket");
  abandon_foreign_descriptors();
  EXPECT_EQ(call<int>("foreign_close", fd), EBADF);
  EXPECT_TRUE(is_owned_descriptor(fd));
  close_owned_descriptor(fd);
}

TEST_F(ForeignLibrary, InstallsNoHandlersAndStartsNoThread) {
  EXPECT_EQ(handler_of(SIGUSR2), nullptr) << "its constructor's";
  EXPECT_EQ(call<int>("foreign_handler"), 0);
  EXPECT_EQ(handler_of(SIGUSR1), nullptr);
  EXPECT_EQ(call<int>("foreign_thread"), EPERM);
}

TEST_F(ForeignLibrary, KeepsSharedMappingsOutOfImages) {
  std::uintptr_t start;
  std::size_t bytes;
  auto* shared = call<void*>("foreign_map", 1);
  EXPECT_TRUE(find_owned_mapping(reinterpret_cast<std::uintptr_t>(shared), 4096, &start, &bytes));
  auto* own = call<void*>("foreign_map", 0);
  EXPECT_FALSE(find_owned_mapping(reinterpret_cast<std::uintptr_t>(own), 4096, &start, &bytes));
}

// The next copy of a backend finds its namespace, and the library in it, again.
TEST_F(ForeignLibrary, StaysWhereItIs) {
  Lmid_t where = LM_ID_BASE;
  ASSERT_EQ(::dlinfo(library_, RTLD_DI_LMID, &where), 0);
  EXPECT_EQ(namespace_of_foreign_library(), where);
  EXPECT_NE(where, LM_ID_BASE);
  void* next = ::dlmopen(where, BESIDE, RTLD_NOW | RTLD_LOCAL);
  EXPECT_EQ(open_foreign_library(next, FOREIGN), library_);
}

}  // namespace
}  // namespace shadowib
