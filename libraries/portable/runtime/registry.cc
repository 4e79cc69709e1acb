#include "libraries/portable/runtime/registry.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace shadowib::portable {
namespace {

std::mutex mutex;
Module* first = nullptr;
bool indexed = false;

std::vector<const Function*>& index() {
  static auto* functions = new std::vector<const Function*>;  // constructors of programs come before ours
  return *functions;
}

void build_index() {
  auto& functions = index();
  functions.clear();
  for (const Module* module = first; module; module = module->next)
    functions.insert(functions.end(), module->functions, module->functions + module->function_count);
  std::sort(functions.begin(), functions.end(),
            [](const Function* a, const Function* b) { return a->address < b->address; });
  indexed = true;
}

}  // namespace

std::vector<const Module*> modules() {
  std::lock_guard lock(mutex);
  std::vector<const Module*> all;
  for (const Module* module = first; module; module = module->next) all.push_back(module);
  std::sort(all.begin(), all.end(),
            [](const Module* a, const Module* b) { return std::strcmp(a->file, b->file) < 0; });
  return all;
}

const Function* function_at(const void* address) {
  std::lock_guard lock(mutex);
  if (!indexed) build_index();
  auto& functions = index();
  auto found =
      std::lower_bound(functions.begin(), functions.end(), address,
                       [](const Function* function, const void* wanted) { return function->address < wanted; });
  return found != functions.end() && (*found)->address == address ? *found : nullptr;
}

}  // namespace shadowib::portable

using namespace shadowib::portable;

extern "C" void shadowib_portable_register(Module* module) {
  if (module->version != kTablesVersion) {
    std::fprintf(stderr,
                 "shadowib: %s was compiled by a shadowib-cc with tables of version %u, this libshadowib-portable "
                 "has %u; compile it again\n",
                 module->file, module->version, kTablesVersion);
    std::abort();
  }
  std::lock_guard lock(mutex);
  module->next = first;
  first = module;
  indexed = false;
}

extern "C" void shadowib_portable_unregister(Module* module) {
  std::lock_guard lock(mutex);
  for (Module** at = &first; *at; at = &(*at)->next) {
    if (*at == module) {
      *at = module->next;
      break;
    }
  }
  indexed = false;
}
