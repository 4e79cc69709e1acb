#include "libraries/portable/runtime/state.h"

#include <cstring>

#include "libraries/portable/image/content.h"
#include "libraries/portable/runtime/frames.h"
#include "libraries/portable/runtime/heap.h"
#include "libraries/portable/runtime/registry.h"

namespace shadowib::portable {
namespace {

const Type kCharacter = {"char", kTypeChar, kFloatNone, 1, 0, nullptr, nullptr};
const Type kText = {"a pointer", kTypePointer, kFloatNone, sizeof(char*), 0, &kCharacter, nullptr};
const Allocation kArgument = {&kCharacter, "the command line", nullptr, 1, 0};
const Allocation kArguments = {&kText, "the command line", nullptr, 2, 0};

std::string text_of(const char* text) { return text ? text : ""; }

// Literals are found again by their content, where it is the same on every architecture.
std::uint64_t literal_hash(const Global& global) {
  const Type* type = global.type;
  while (type && type->kind == kTypeArray) type = type->element;
  return type && type->kind == kTypeChar ? content_hash(global.address, global.size, 1) : 0;
}

void add_global(State& state, StateIndex& index, const Global& global, std::uint32_t module) {
  if (global.flags & kGlobalThread)
    throw Refused{"the variable " + text_of(global.name) + " of " + text_of(global.file) +
                  " is thread-local, and those are not saved"};
  Object object;
  object.kind = global.flags & kGlobalLiteral ? kObjectLiteral : kObjectGlobal;
  object.flags = global.flags;
  object.address = reinterpret_cast<std::uintptr_t>(global.address);
  object.size = global.size;
  object.type = index.type(global.type);
  object.line = global.line;
  object.data = global.flags & (kGlobalConstant | kGlobalLiteral) ? kNoData : 0;
  object.file = text_of(global.file), object.name = text_of(global.name);
  object.source_hash = global.flags & kGlobalLiteral ? literal_hash(global) : global.source_hash;
  object.module = module;
  state.image.objects.push_back(std::move(object));
  state.memory.push_back(static_cast<unsigned char*>(global.address));
}

void add_slot(State& state, StateIndex& index, const Frame& frame, const Slot& slot) {
  Object object;
  object.kind = kObjectSlot;
  object.flags = slot.flags;
  object.address = slot.flags & kSlotAddress ? slot_address(frame, slot) : 0;
  object.size = slot.size;
  object.type = index.type(slot.type);
  object.line = slot.line;
  object.data = 0;
  object.file = text_of(frame.site->function->name), object.name = text_of(slot.name);
  state.image.objects.push_back(std::move(object));
  state.memory.push_back(frame.buffer.get() + slot.offset);
}

}  // namespace

TypeIndex StateIndex::type(const Type* type) {
  if (!type) return kNoType;
  auto& types = state_.image.layouts.types;
  auto [found, fresh] = types_.try_emplace(type, static_cast<TypeIndex>(types.size()));
  const TypeIndex index = found->second;
  if (!fresh) return index;
  types.emplace_back();
  LayoutType made;
  made.name = text_of(type->name);
  made.kind = type->kind, made.format = type->format, made.size = type->size, made.count = type->count;
  made.element = this->type(type->element);
  const bool record = type->kind == kTypeStruct || type->kind == kTypeUnion;
  for (std::uint64_t i = 0; record && i < type->count; i++) {
    const Member& member = type->members[i];
    made.members.push_back({text_of(member.name), this->type(member.type), member.bit_offset, member.bit_width});
  }
  types[index] = std::move(made);
  return index;
}

std::uint32_t StateIndex::allocation(const Allocation* allocation, std::uint32_t module) {
  auto& list = state_.image.allocations;
  auto [found, fresh] = allocations_.try_emplace(allocation, static_cast<std::uint32_t>(list.size()));
  if (fresh) {
    list.push_back({text_of(allocation->file), text_of(allocation->function), allocation->line, allocation->column,
                    type(allocation->type), module});
    state_.allocations.push_back(allocation);
  }
  return found->second;
}

std::uint32_t StateIndex::function(const Function* function, std::uint32_t module) {
  auto& list = state_.image.functions;
  auto [found, fresh] = functions_.try_emplace(function, static_cast<std::uint32_t>(list.size()));
  if (fresh) {
    list.push_back({text_of(function->file), text_of(function->name), function->source_hash,
                    reinterpret_cast<std::uintptr_t>(function->address), module});
    state_.functions.push_back(function);
  }
  return found->second;
}

void add_program(State& state, StateIndex& index) {
  Image& image = state.image;
  image.version = SHADOWIB_VERSION;
  image.layouts.big_endian = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;
  image.layouts.pointer_size = sizeof(void*);
  for (const Module* module : modules()) {
    image.target = text_of(module->target);
    if (!image.modules.empty() && image.modules.back().file == text_of(module->file))
      throw Refused{"two files of the program are named " + text_of(module->file) +
                    "; compile them by different paths, as a/" + text_of(module->file)};
    const auto number = static_cast<std::uint32_t>(image.modules.size());
    image.modules.push_back({text_of(module->file), module->source_hash});
    for (std::uint32_t i = 0; i < module->function_count; i++) index.function(module->functions[i], number);
    for (std::uint32_t i = 0; i < module->allocation_count; i++) index.allocation(module->allocations[i], number);
    for (std::uint32_t i = 0; i < module->global_count; i++) add_global(state, index, *module->globals[i], number);
  }
  index.allocation(&kArgument), index.allocation(&kArguments);
}

void add_blocks(State& state, StateIndex& index) {
  for (const HeapBlock& block : heap_blocks()) {
    Object object;
    object.kind = kObjectHeap;
    object.address = reinterpret_cast<std::uintptr_t>(block.address);
    object.size = block.size;
    object.data = 0;
    object.flags = block.alignment;
    object.allocation = index.allocation(block.allocation);
    object.type = state.image.allocations[object.allocation].type;
    if (object.type == kNoType && block.size == 0) continue;
    if (object.type == kNoType)
      throw Refused{object_name(state.image, object) +
                    " has no known type; convert the result of malloc to a pointer of its type there"};
    try {
      (void)shape_of(state.image.layouts, object.type, object.size);
    } catch (const Refused& refused) {
      throw Refused{object_name(state.image, object) + ": " + refused.text};
    }
    state.image.objects.push_back(std::move(object));
    state.memory.push_back(block.address);
  }
}

void add_frames(State& state, StateIndex& index) {
  for (const Frame& frame : left_stack().frames) {
    FrameState made;
    made.function = index.function(frame.site->function);
    made.site = frame.site->index, made.line = frame.site->line, made.sites = frame.site->function->site_count;
    made.callee = text_of(frame.site->callee);
    made.first_slot = static_cast<std::uint32_t>(state.image.objects.size());
    made.slot_count = frame.site->slot_count;
    for (std::uint32_t i = 0; i < frame.site->slot_count; i++) add_slot(state, index, frame, frame.site->slots[i]);
    state.image.frames.push_back(std::move(made));
  }
}

char** keep_arguments(int argc, char** argv) {
  auto** kept = static_cast<char**>(heap_take(sizeof(char*) * (argc + 1), 16, &kArguments));
  if (!kept) broken("there is no memory", "for the program's arguments");
  for (int i = 0; i < argc; i++) kept[i] = shadowib_portable_strndup(argv[i], ~std::size_t{0}, &kArgument);
  return kept;
}

}  // namespace shadowib::portable
