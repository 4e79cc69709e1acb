// Run with our drop-in directory first in LD_LIBRARY_PATH, as `shadowib run` starts programs.
#include "shadowib/objects/system_library.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <string.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace shadowib {
namespace {

TEST(SystemLibrary, IsNotOurDropIn) {
  const char* path = ::getenv("LD_LIBRARY_PATH");
  ASSERT_TRUE(path != nullptr && std::ifstream(std::string(path) + "/libibverbs.so.1").good()) << "no drop-in there";
  const std::string found = system_library("libibverbs.so.1");
  ASSERT_EQ(found[0], '/') << found;
  EXPECT_NE(found, std::string(path) + "/libibverbs.so.1");
  void* handle = ::dlopen(found.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(handle, nullptr) << ::dlerror();
  EXPECT_NE(::dlsym(handle, "ibv_open_device"), nullptr);
  ::dlclose(handle);
}

TEST(SystemLibrary, KeepsPathsAndWhatIsNotFound) {
  EXPECT_EQ(system_library("/some/where.so"), "/some/where.so");
  EXPECT_EQ(system_library("libnobody-has-this.so.7"), "libnobody-has-this.so.7");
}

TEST(SystemLibrary, ReadsTheLoadersCache) {
  std::ifstream file("/etc/ld.so.cache", std::ios::binary);
  std::string image{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (image.empty()) GTEST_SKIP() << "this machine has no /etc/ld.so.cache";
  const std::string libc = find_in_loader_cache(image.data(), image.size(), "libc.so.6");
  EXPECT_NE(libc.find("/libc.so.6"), std::string::npos) << libc;
  EXPECT_EQ(find_in_loader_cache(image.data(), image.size(), "libc.so"), "");
  // Cut short, or not a cache, it finds nothing or something, and stays inside.
  for (std::size_t bytes = 0; bytes < image.size(); bytes += 1 + bytes / 7)
    (void)find_in_loader_cache(std::string(image, 0, bytes).data(), bytes, "libc.so.6");
  image[0] ^= 1;
  EXPECT_EQ(find_in_loader_cache(image.data(), image.size(), "libc.so.6"), "");
}

}  // namespace
}  // namespace shadowib
