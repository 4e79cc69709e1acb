// libshadowib.so exports what the census says, with the library's own versions, and the drop-in directory catches
// programs that look verbs up at run time.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "shadowib/abi/census_reader.h"

namespace shadowib::census {
namespace {

std::set<std::string> exported_names(const std::string& file, bool versioned) {
  std::set<std::string> names;
  for (const Symbol& s : dynamic_symbols(file))
    if (s.defined && s.version.empty() != versioned) names.insert(s.text());
  return names;
}

TEST(Exports, AreTheCensusAndTheApi) {
  std::set<std::string> expected = census_symbols();
  for (const char* name : {"version", "is_member", "join", "checkpoint", "add_hook", "remove_hook", "last_error"})
    expected.insert(std::string("shadowib_") + name + "@@SHADOWIB_1");
  for (const char* name : {"join_as", "publish", "lookup"})
    expected.insert(std::string("shadowib_") + name + "@@SHADOWIB_2");
  std::set<std::string> found = exported_names(SHADOWIB_LIBRARY, true);
  for (const std::string& name : expected) EXPECT_TRUE(found.count(name)) << name << " is not exported";
  for (const std::string& name : found)
    EXPECT_TRUE(expected.count(name)) << name << " is exported but not in the census";
}

TEST(Exports, CoverTheInstalledLibraryVersionByVersion) {
  std::set<std::string> ours = exported_names(SHADOWIB_LIBRARY, true);
  const std::vector<Symbol> all = dynamic_symbols(SHADOWIB_LIBRARY);
  for (const Symbol& s : dynamic_symbols(SHADOWIB_IBVERBS_FILE)) {
    if (!s.defined) continue;
    EXPECT_TRUE(ours.count(s.text())) << s.text();
    auto same = std::find_if(all.begin(), all.end(), [&](const Symbol& o) { return o.text() == s.text(); });
    if (same != all.end()) {
      EXPECT_EQ(same->is_data, s.is_data) << s.text();
    }
  }
}

// Without a version only functions of libc and of launchers' libraries are exported: those the shim interposes.
TEST(Exports, WithoutVersionAreFunctionsOfLibcAndPmixOnly) {
  for (const std::string& name : exported_names(SHADOWIB_LIBRARY, false)) {
    static void* const libc = ::dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    static void* const pmix = ::dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
    const bool known =
        ::dlsym(libc, name.c_str()) != nullptr || (pmix != nullptr && ::dlsym(pmix, name.c_str()) != nullptr);
    EXPECT_TRUE(known) << name << " is exported and no function of libc or libpmix";
  }
}

TEST(Exports, NeedNoCppRuntimeAndNoVerbs) {
#if !defined(SHADOWIB_SANITIZED)
  std::string command =
      std::string(SHADOWIB_READELF " -d '") + SHADOWIB_LIBRARY "' | grep -E 'NEEDED.*(stdc|gcc|ibverbs)'";
  EXPECT_NE(std::system(command.c_str()), 0) << "libshadowib.so must not need these";
#endif
}

// What LD_PRELOAD has to be for the shim to be loaded: itself, behind the run-time library of the sanitizer this test
// and the shim are built with, if any, which refuses every place but the first.
std::string preload_of_shim() {
  std::string runtime;
  ::dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* found) {
        const std::string path = library->dlpi_name;
        for (const char* name : {"/libasan.so", "/libtsan.so"})
          if (path.find(name) != std::string::npos) *static_cast<std::string*>(found) = path + ":";
        return 0;
      },
      &runtime);
  return runtime + SHADOWIB_LIBRARY;
}

// Runs `check` in a child whose loader sees the drop-in directory and, if asked, a preloaded shim.
int run_with_dropin(const char* program, bool preload, const char* mode) {
  pid_t child = ::fork();
  if (child == 0) {
    ::setenv("LD_LIBRARY_PATH", SHADOWIB_DROPIN_DIR, 1);
    if (preload) ::setenv("LD_PRELOAD", preload_of_shim().c_str(), 1);
    ::setenv("SHADOWIB_LOG", "error", 1);
    ::execl(program, program, "--gtest_also_run_disabled_tests", mode, nullptr);
    ::_exit(126);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

// Copies of libshadowib.so mapped into this process, counted by file.
int mapped_shims() {
  std::set<std::string> files;
  std::string maps = read_text("/proc/self/maps");
  for (std::size_t at = 0; (at = maps.find("libshadowib.so", at)) != std::string::npos; ++at) {
    std::size_t start = maps.rfind('\n', at) + 1;
    std::string line = maps.substr(start, maps.find('\n', at) - start);
    if (line.find(" 00000000 ") != std::string::npos) files.insert(line);
  }
  return static_cast<int>(files.size());
}

// The part that runs under the drop-in directory.
TEST(DropinChild, DISABLED_FindsTheShim) {
  for (const char* name : {"libibverbs.so", "libibverbs.so.1"}) {
    void* library = ::dlopen(name, RTLD_NOW);
    ASSERT_NE(library, nullptr) << ::dlerror();
    struct {
      const char *verb, *version;
    } kVerbs[] = {{"ibv_open_device", "IBVERBS_1.1"},
                  {"ibv_reg_mr_iova2", "IBVERBS_1.8"},
                  {"ibv_query_ece", "IBVERBS_1.10"},
                  {"ibv_reg_dmabuf_mr", "IBVERBS_1.12"},
                  {"ibv_open_device", "IBVERBS_1.0"}};
    for (auto& v : kVerbs) {
      void* symbol = ::dlvsym(library, v.verb, v.version);
      ASSERT_NE(symbol, nullptr) << v.verb << "@" << v.version;
      Dl_info info;
      ASSERT_NE(::dladdr(symbol, &info), 0);
      EXPECT_NE(std::string(info.dli_fname).find("libshadowib.so"), std::string::npos)
          << v.verb << " is in " << info.dli_fname;
    }
    EXPECT_EQ(::dlvsym(library, "ibv_open_device", "IBVERBS_1.12"), nullptr);
    EXPECT_EQ(::dlvsym(library, "ibv_frobnicate", "IBVERBS_1.1"), nullptr);
  }
  EXPECT_EQ(mapped_shims(), 1);
}

// rdma-core's and its clients' version requirements are met by the drop-in library and the shim behind it.
TEST(DropinChild, DISABLED_SatisfiesLibrariesLinkedToVerbs) {
  for (const char* name : {"librdmacm.so.1", "libmlx5.so.1", "libefa.so.1"})
    EXPECT_NE(::dlopen(name, RTLD_NOW | RTLD_LOCAL), nullptr) << ::dlerror();
  EXPECT_EQ(mapped_shims(), 1);
}

class Dropin : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(PreloadedToo, Dropin, ::testing::Bool());

TEST_P(Dropin, FindsTheShimOnce) {
  EXPECT_EQ(run_with_dropin("/proc/self/exe", GetParam(), "--gtest_filter=DropinChild.DISABLED_FindsTheShim"), 0);
}

TEST_P(Dropin, SatisfiesLibrariesLinkedToVerbs) {
  EXPECT_EQ(run_with_dropin("/proc/self/exe", GetParam(),
                            "--gtest_filter=DropinChild.DISABLED_SatisfiesLibrariesLinkedToVerbs"),
            0);
}

}  // namespace
}  // namespace shadowib::census
