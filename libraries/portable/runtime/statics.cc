#include "libraries/portable/runtime/statics.h"

#include <algorithm>
#include <set>
#include <vector>

#include "libraries/portable/runtime/registry.h"

extern "C" int __cxa_atexit(void (*destroy)(void*), void* object, void* library);

namespace shadowib::portable {
namespace {

std::uint64_t made = 0;  // statics so far

std::set<const Static*>& own() {
  static auto* only = new std::set<const Static*>;
  return *only;
}

std::vector<const Static*> all_made() {
  std::vector<const Static*> found;
  for (const Module* module : modules()) {
    for (std::uint64_t i = 0; i < module->static_count; i++)
      if (*module->statics[i]->order != 0) found.push_back(module->statics[i]);
  }
  std::sort(found.begin(), found.end(), [](const Static* a, const Static* b) { return *a->order < *b->order; });
  return found;
}

}  // namespace

void note_statics() {
  for (const Static* one : all_made()) own().insert(one);
}

void register_statics() {
  for (const Static* one : all_made()) {
    made = std::max(made, *one->order);
    if (!own().count(one)) __cxa_atexit(one->destroy, one->object, one->library);
  }
}

}  // namespace shadowib::portable

using namespace shadowib::portable;

extern "C" void shadowib_portable_made(const Static* one) { *one->order = ++made; }
