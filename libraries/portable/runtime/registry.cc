#include "libraries/portable/runtime/registry.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

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

namespace {

bool has_long_double(const Type* type, std::set<const Type*>& seen) {
  if (!type || !seen.insert(type).second) return false;
  if (type->kind == kTypeFloat && type->size > sizeof(double)) return true;
  if (type->kind == kTypeStruct || type->kind == kTypeUnion) {
    for (std::uint64_t i = 0; i < type->count; i++)
      if (has_long_double(type->members[i].type, seen)) return true;
    return false;
  }
  return has_long_double(type->element, seen);
}

}  // namespace
}  // namespace shadowib::portable

using namespace shadowib::portable;

// 1 if a variable or a block of the program may hold a long double, which processors have in several formats.
extern "C" int shadowib_portable_has_long_double(void) {
  std::set<const Type*> seen;
  for (const Module* module : modules()) {
    for (std::uint32_t i = 0; i < module->global_count; i++)
      if (has_long_double(module->globals[i]->type, seen)) return 1;
    for (std::uint32_t i = 0; i < module->allocation_count; i++)
      if (has_long_double(module->allocations[i]->type, seen)) return 1;
    for (std::uint32_t i = 0; i < module->function_count; i++) {
      const Function& function = *module->functions[i];
      for (std::uint32_t k = 0; k < function.site_count; k++)
        for (std::uint32_t j = 0; j < function.sites[k]->slot_count; j++)
          if (has_long_double(function.sites[k]->slots[j].type, seen)) return 1;
    }
  }
  return 0;
}

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
