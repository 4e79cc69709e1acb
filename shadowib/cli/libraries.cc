#include "shadowib/cli/libraries.h"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <vector>

#include "shadowib/cli/elf_file.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

// libasan and libtsan refuse to start unless they are the first library. `needed` is how ours is linked to it, so the
// loader is asked for that very name.
std::string sanitizer_of(const std::string& library) {
  ElfFacts elf;
  if (!read_elf(library, &elf)) return {};
  for (const std::string& needed : elf.needed) {
    if (needed.compare(0, 10, "libasan.so") != 0 && needed.compare(0, 10, "libtsan.so") != 0) continue;
    std::error_code error;
    // Both answers are the canonical path: nested runs compare it. This command is built as the library is, so the
    // runtime is loaded here already; never load it just to look.
    if (void* handle = ::dlopen(needed.c_str(), RTLD_LAZY | RTLD_NOLOAD); handle != nullptr) {
      link_map* map = nullptr;
      std::string path;
      if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0) path = map->l_name;
      ::dlclose(handle);
      if (!path.empty()) return fs::weakly_canonical(path);
    }
    for (const char* place :
         {"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/lib/x86_64-linux-gnu", "/lib64", "/usr/lib"})
      if (fs::exists(fs::path(place) / needed, error)) return fs::weakly_canonical(fs::path(place) / needed);
    return needed;  // let the loader search
  }
  return {};
}

std::string in_front(const std::string& item, const std::string& list, char separator) {
  if (item.empty() || list == item || list.compare(0, item.size() + 1, item + separator) == 0) return list;
  return list.empty() ? item : item + separator + list;
}

}  // namespace

Status find_libraries(Libraries* libraries) {
  std::error_code error;
  fs::path own = fs::read_symlink("/proc/self/exe", error);
  if (error) return Status::of(Code::kIo, error.value(), "cannot read /proc/self/exe; is /proc mounted?");
  fs::path prefix = own.parent_path().parent_path();
  std::string looked;
  for (const char* place : {"lib", SHADOWIB_LIBDIR, "lib/x86_64-linux-gnu", "lib64"}) {
    fs::path directory = prefix / place;
    fs::path library = directory / "libshadowib.so";
    if (!fs::exists(library, error)) {
      if (looked.find(directory.string() + " ") == std::string::npos) looked += directory.string() + " ";
      continue;
    }
    libraries->preload = library;
    for (const char* dropin : {"dropin", "shadowib/dropin"})
      if (libraries->dropin.empty() && fs::is_directory(directory / dropin, error))
        libraries->dropin = directory / dropin;
    if (fs::exists(directory / "shadowib/libshadowib-ib2tcp.so", error))
      libraries->ib2tcp = directory / "shadowib/libshadowib-ib2tcp.so";
    if (fs::exists(directory / "shadowib/libshadowib-join.so", error))
      libraries->join = directory / "shadowib/libshadowib-join.so";
    libraries->sanitizer = sanitizer_of(library);
    // The loader separates LD_PRELOAD at both characters and knows no quoting.
    if (libraries->preload.find_first_of(" :") != std::string::npos)
      return Status::of(Code::kUsage, 0,
                        "%.250s cannot be preloaded as its path has a blank or a colon; install elsewhere",
                        libraries->preload.c_str());
    return {};
  }
  return Status::of(Code::kNotFound, ENOENT,
                    "libshadowib.so is in none of %.200s; build or install shadowib completely", looked.c_str());
}

std::string preload_list(const Libraries& libraries, bool joins, const std::string& before) {
  std::string ours = libraries.sanitizer.empty() ? "" : libraries.sanitizer + ":";
  return in_front(ours + libraries.preload + (joins ? ":" + libraries.join : ""), before, ':');
}

std::string library_path(const Libraries& libraries, const std::string& before) {
  return in_front(libraries.dropin, before, ':');
}

}  // namespace shadowib::cli
