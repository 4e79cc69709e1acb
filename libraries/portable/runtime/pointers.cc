#include "libraries/portable/runtime/pointers.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <set>
#include <tuple>

#include "libraries/portable/image/pointee.h"
#include "libraries/portable/image/walk.h"
#include "libraries/portable/runtime/heap.h"

namespace shadowib::portable {
namespace {

bool mapped(std::uint64_t address) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  unsigned char there = 0;
  return mincore(reinterpret_cast<void*>(static_cast<std::uintptr_t>(address) & ~(page - 1)), 1, &there) == 0;
}

// Where calls that have ended had their variables.
bool dead_stack(std::uint64_t address) {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return false;
  void* lowest = nullptr;
  std::size_t bytes = 0;
  const bool known = pthread_attr_getstack(&attributes, &lowest, &bytes) == 0;
  pthread_attr_destroy(&attributes);
  return known && address >= reinterpret_cast<std::uintptr_t>(lowest) &&
         address < reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
}

class PointerCheck : public Walk {
 public:
  explicit PointerCheck(State& state)
      : Walk(state.image.layouts), state_(state), index_(state.image), holds_(layouts_.types.size(), kUnknown) {
    for (const auto& [name, stream] : {std::pair{"stdin", stdin}, {"stdout", stdout}, {"stderr", stderr}})
      foreign(name, reinterpret_cast<std::uintptr_t>(stream));
  }

  // Variables first: a refusal then names one rather than a block that it leads to.
  void all() {
    for (const bool blocks : {false, true}) {
      for (std::size_t i = 0; i < state_.image.objects.size(); i++) {
        now_ = &state_.image.objects[i];
        if (now_->data == kNoData || (now_->kind == kObjectHeap) != blocks) continue;
        object(now_->type, state_.memory[i], value_bytes(state_.image, *now_));
      }
    }
  }

 private:
  enum Holds : std::uint8_t { kUnknown, kNothing, kSomething };

  // Only pointers, and bytes without a meaning, must be looked at.
  bool wanted(TypeIndex index) override {
    if (holds_[index] == kUnknown) {
      const LayoutType& type = layouts_[index];
      bool some = !is_integer(type) && type.kind != kTypeFloat && !is_list(type) && type.kind != kTypeStruct;
      if (is_list(type)) some = wanted(type.element);
      if (type.kind == kTypeStruct)
        for (const LayoutMember& member : type.members) some |= wanted(member.type);
      holds_[index] = some ? kSomething : kNothing;
    }
    return holds_[index] == kSomething;
  }

  void enter(const std::string& member, std::uint64_t element) override { path_.emplace_back(&member, element); }
  void leave() override { path_.pop_back(); }

  [[noreturn]] void refuse(const std::string& text) const {
    std::string where = object_name(state_.image, *now_);
    for (const auto& [member, element] : path_)
      where += member->empty() ? "[" + std::to_string(element) + "]" : "." + *member;
    throw Refused{where + ": " + text};
  }

  void value(TypeIndex index, const unsigned char* at, std::uint64_t, std::uint64_t) override {
    const LayoutType& type = layouts_[index];
    if (type.kind == kTypePointer) return pointer(type, at);
    if (type.kind == kTypeUnion && plain_union(layouts_, type)) return;
    for (std::uint64_t i = 0; i < type.size; i++) {
      if (at[i]) refuse(bytes_of(layouts_, index));
    }
  }

  void pointer(const LayoutType& type, const unsigned char* at) {
    std::uintptr_t address = 0;
    std::memcpy(&address, at, sizeof address);
    if (address == 0) return;
    const Target target = index_.find(address);
    if (target.kind == Target::kObject) return within(type, target);
    if (target.kind != Target::kNowhere || foreign_.count(address)) return;
    if (heap_owns(reinterpret_cast<const void*>(address)) || !mapped(address) || dead_stack(address)) return;
    Dl_info about = {};
    const bool known = dladdr(reinterpret_cast<const void*>(address), &about) != 0;
    if (known && about.dli_saddr == reinterpret_cast<void*>(address) && about.dli_sname &&
        dlsym(RTLD_DEFAULT, about.dli_sname) == about.dli_saddr)
      return foreign(about.dli_sname, address);
    refuse("a pointer to memory that is not the program's" +
           (known && about.dli_fname ? std::string(", but of ") + about.dli_fname : std::string()));
  }

  // The pointer must lead to a value that a restart finds again, and that is of the type it expects: memory with
  // other values than its type says would be saved as what its type says.
  void within(const LayoutType& type, const Target& target) {
    const Object& object = state_.image.objects[target.index];
    const auto key = std::make_tuple(type.element, object.type, object.size);
    if (target.offset == 0 && known_.count(key)) return;
    const Shape shape = shape_of(layouts_, object.type, value_bytes(state_.image, object));
    std::string lost;
    try {
      (void)way_to(layouts_, object.type, shape, target.offset, type.element);
    } catch (const Refused& refused) {
      lost = refused.text;
    }
    if (!lost.empty()) refuse(lost + ", within " + object_name(state_.image, object));
    if (object.data == kNoData) return;  // the source has its values
    if (!leads_to(layouts_, object.type, shape, target.offset, type.element))
      refuse("a pointer to " + type_name(layouts_, type.element) + " within " + described(object));
    if (target.offset == 0) known_.insert(key);
  }

  std::string described(const Object& object) const {
    const bool characters = layouts_[innermost_type(layouts_, object.type)].kind == kTypeChar;
    return object_name(state_.image, object) + " as " +
           (characters ? "characters" : type_name(layouts_, object.type));
  }

  void foreign(const std::string& name, std::uint64_t address) {
    if (foreign_.insert(address).second) state_.image.foreign.push_back({name, address});
  }

  State& state_;
  AddressIndex index_;
  std::vector<Holds> holds_;
  std::vector<std::pair<const std::string*, std::uint64_t>> path_;
  std::set<std::uint64_t> foreign_;
  std::set<std::tuple<TypeIndex, TypeIndex, std::uint64_t>> known_;  // pointers to objects' begins that are right
  const Object* now_ = nullptr;
};

}  // namespace

void check_pointers(State& state) { PointerCheck(state).all(); }

}  // namespace shadowib::portable
