// What libshadowib.so has made by the time it is loaded.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>

namespace shadowib {
namespace {

struct Close {
  void operator()(std::FILE* file) const { ::pclose(file); }
};

// Of a function's static that is made at the first call a guard tells whether it is: its first byte is 1 then. A
// child forked while another thread makes it waits for that thread, which it has not got; the handlers of fork use
// such objects, too. So all are to be there when the library is.
TEST(Load, MakesEveryStaticThatHasAGuard) {
  void* library = ::dlopen(SHADOWIB_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  const link_map* map = nullptr;
  ASSERT_EQ(::dlinfo(library, RTLD_DI_LINKMAP, &map), 0);
  std::unique_ptr<std::FILE, Close> table(::popen(SHADOWIB_READELF " -sW '" SHADOWIB_LIBRARY "'", "r"));
  ASSERT_NE(table, nullptr);
  int symbols = 0, guards = 0;
  char* line = nullptr;
  std::size_t room = 0;
  while (::getline(&line, &room, table.get()) > 0) {
    std::istringstream words(line);
    std::string number, value, size, type, binding, visibility, section, name;
    if (!(words >> number >> value >> size >> type >> binding >> visibility >> section >> name) || type != "OBJECT")
      continue;
    ++symbols;
    if (name.rfind("_ZGV", 0) != 0) continue;
    ++guards;
    const auto* guard = reinterpret_cast<const char*>(map->l_addr + std::stoull(value, nullptr, 16));
    EXPECT_EQ(*guard, 1) << name;
  }
  std::free(line);
  EXPECT_GT(symbols, 100) << "the library is stripped";
  EXPECT_GT(guards, 0);
}

}  // namespace
}  // namespace shadowib
