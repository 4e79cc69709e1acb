// Types of C++: bases, pointers to virtual tables, and those classes of the standard library whose members are known.
#include <llvm/IR/Operator.h>

#include <algorithm>

#include "libraries/portable/compiler/facts.h"
#include "libraries/portable/compiler/ir/sources.h"
#include "libraries/portable/compiler/ir/tables.h"
#include "libraries/portable/tables.h"

namespace shadowib::portable::compiler {
namespace {

// Classes of the standard library whose members say all: by their names without arguments. What lies within one of
// these counts as it. Others are refused, as their members depend on the processor, on locks or on other memory.
constexpr const char* kKnown[] = {"vector",
                                  "_Vector_base",
                                  "array",
                                  "__array_traits",
                                  "pair",
                                  "__pair_base",
                                  "tuple",
                                  "_Tuple_impl",
                                  "_Head_base",
                                  "basic_string",
                                  "allocator",
                                  "new_allocator",
                                  "allocator_traits",
                                  "optional",
                                  "_Optional_base",
                                  "_Optional_payload",
                                  "_Optional_payload_base",
                                  "unique_ptr",
                                  "__uniq_ptr_impl",
                                  "__uniq_ptr_data",
                                  "default_delete",
                                  "map",
                                  "multimap",
                                  "set",
                                  "multiset",
                                  "_Rb_tree",
                                  "_Rb_tree_node",
                                  "_Rb_tree_node_base",
                                  "_Rb_tree_header",
                                  "_Rb_tree_key_compare",
                                  "_Rb_tree_iterator",
                                  "_Rb_tree_const_iterator",
                                  "__aligned_membuf",
                                  "__aligned_buffer",
                                  "list",
                                  "_List_base",
                                  "_List_node",
                                  "_List_node_base",
                                  "_List_node_header",
                                  "_List_iterator",
                                  "_List_const_iterator",
                                  "forward_list",
                                  "_Fwd_list_base",
                                  "_Fwd_list_node",
                                  "_Fwd_list_node_base",
                                  "_Fwd_list_iterator",
                                  "_Fwd_list_const_iterator",
                                  "complex",
                                  "less",
                                  "greater",
                                  "equal_to",
                                  "initializer_list",
                                  "__normal_iterator",
                                  "reverse_iterator",
                                  "move_iterator",
                                  "back_insert_iterator",
                                  "insert_iterator",
                                  "basic_string_view",
                                  "reference_wrapper",
                                  "linear_congruential_engine",
                                  "mersenne_twister_engine",
                                  "uniform_int_distribution",
                                  "uniform_real_distribution",
                                  "normal_distribution",
                                  "duration",
                                  "time_point",
                                  "_Iter_comp_iter",
                                  "_Iter_less_iter",
                                  "_Val_comp_iter",
                                  "_Iter_comp_val",
                                  "_Iter_pred",
                                  "_UninitDestroyGuard"};

llvm::StringRef without_arguments(llvm::StringRef name) {
  return name.take_until([](char c) { return c == '<'; });
}

// The outermost class that a type lies in; null: none. Sets *standard: it is of the standard library.
const llvm::DICompositeType* outermost(const llvm::DIType* type, bool* standard) {
  const llvm::DICompositeType* found = nullptr;
  *standard = false;
  for (const llvm::DIScope* scope = type; scope; scope = scope->getScope()) {
    if (const auto* record = llvm::dyn_cast<llvm::DICompositeType>(scope)) found = record;
    const auto* space = llvm::dyn_cast<llvm::DINamespace>(scope);
    if (space && !llvm::isa_and_nonnull<llvm::DINamespace>(space->getScope()))
      *standard = space->getName() == "std" || space->getName() == "__gnu_cxx";
  }
  return found;
}

std::string qualified(const llvm::DIType* type) {
  std::string name = type->getName().empty() ? "a class without a name" : type->getName().str();
  for (const llvm::DIScope* scope = type->getScope(); scope; scope = scope->getScope()) {
    const auto* space = llvm::dyn_cast<llvm::DINamespace>(scope);
    const bool shown = space ? !space->getExportSymbols() : llvm::isa<llvm::DICompositeType>(scope);
    if (shown && !scope->getName().empty()) name = scope->getName().str() + "::" + name;
  }
  return name;
}

bool is_record(const llvm::DIType* type) {
  const auto* record = llvm::dyn_cast_or_null<llvm::DICompositeType>(type);
  return record && (record->getTag() == llvm::dwarf::DW_TAG_structure_type ||
                    record->getTag() == llvm::dwarf::DW_TAG_class_type);
}

bool is_part(const llvm::DIDerivedType* member) {
  return member && !member->isStaticMember() &&
         (member->getTag() == llvm::dwarf::DW_TAG_member || member->getTag() == llvm::dwarf::DW_TAG_inheritance);
}

// No values: its byte may be another member's.
bool is_empty(const llvm::DIType* type) {
  type = bare(type);
  const auto* record = llvm::dyn_cast_or_null<llvm::DICompositeType>(type);
  if (!is_record(type) || record->isForwardDecl() || record->getSizeInBits() > 8) return false;
  return std::all_of(record->getElements().begin(), record->getElements().end(), [](const llvm::DINode* node) {
    const auto* member = llvm::dyn_cast<llvm::DIDerivedType>(node);
    return !is_part(member) || is_empty(member->getBaseType());
  });
}

// Of the standard library, and not one whose members are known to say all.
bool is_unknown(const llvm::DIType* type) {
  bool standard = false;
  const llvm::DICompositeType* outer = outermost(type, &standard);
  if (!standard || !outer || is_empty(type)) return false;
  const llvm::StringRef name = outer->getName();
  return !llvm::is_contained(kKnown, without_arguments(name)) || name.startswith("vector<bool") ||
         name.startswith("_Vector_base<bool");
}

const llvm::DIType* first_argument(const llvm::DICompositeType* type) {
  if (type->getTemplateParams().empty()) return nullptr;
  const auto* argument = llvm::dyn_cast<llvm::DITemplateTypeParameter>(type->getTemplateParams()[0]);
  return argument ? argument->getType() : nullptr;
}

}  // namespace

// The members of bases are members of the class: the room behind a base's last member may have others.
void Tables::add_parts(const llvm::DICompositeType* type, std::uint64_t bit_offset, const std::string& base,
                       Parts& parts) {
  const llvm::StringRef name = without_arguments(type->getName());
  if (name == "_Vector_impl_data") parts.format = kRecordVector;
  if (name == "_Optional_payload_base") parts.format = kRecordOptional;
  for (const llvm::DINode* node : type->getElements()) {
    const auto* member = llvm::dyn_cast<llvm::DIDerivedType>(node);
    if (!is_part(member)) continue;
    const auto* of = bare(member->getBaseType());
    const std::uint64_t begin = bit_offset + member->getOffsetInBits();
    if (member->getTag() == llvm::dwarf::DW_TAG_inheritance) {
      if (member->isVirtual()) {
        parts.refusal = "has a virtual base";
      } else if (!is_empty(of)) {
        const auto* record = llvm::cast<llvm::DICompositeType>(of);
        if (is_unknown(record)) parts.refusal = "has a base that is not supported";
        add_parts(record, begin, without_arguments(record->getName()).str() + "::", parts);
      }
      continue;
    }
    if (is_empty(of)) continue;
    const bool table = member->isArtificial() && member->getName().startswith("_vptr$");
    const std::uint64_t bits = member->isBitField() ? member->getSizeInBits() : of ? of->getSizeInBits() : 0;
    parts.members.push_back(
        llvm::ConstantStruct::get(member_type_, {text(base + (table ? "_vptr" : member->getName().str())),
                                                 table ? plain_type(pointer_) : this->type(member->getBaseType()),
                                                 number(begin), number(member->isBitField() ? bits : 0)}));
    parts.places.emplace_back(begin, begin + bits);
  }
}

llvm::Constant* Tables::class_of(const llvm::DICompositeType* type) {
  const std::uint64_t size = type->getSizeInBits() / 8;
  const std::string name = qualified(type);
  bool standard = false;
  const llvm::DICompositeType* outer = outermost(type, &standard);
  const llvm::StringRef family = outer ? without_arguments(outer->getName()) : "";
  auto refused = [&](const std::string& why) {
    return type_fields(name + why, kTypeUnknown, 0, size, 0, null(), null());
  };
  if (standard && !is_empty(type)) {
    if (is_unknown(type)) return refused(", which is not supported");
    if ((family == "__aligned_membuf" || family == "__aligned_buffer") && outer == type && first_argument(type)) {
      auto* value = llvm::ConstantStruct::get(
          member_type_, {text("value"), this->type(first_argument(type)), number(0), number(0)});
      return type_fields(name, kTypeStruct, 0, size, 1, null(), array({value}, member_type_));
    }
  }
  Parts parts;
  add_parts(type, 0, "", parts);
  if (!parts.refusal.empty()) return refused(", which " + parts.refusal);
  const bool alternatives = type->getTag() == llvm::dwarf::DW_TAG_union_type && parts.members.size() > 1;
  const bool text_or_room = standard && family == "basic_string" && alternatives;
  if (alternatives) {
    return type_fields(name, kTypeUnion, text_or_room ? kRecordTextOrRoom : kRecordPlain, size, parts.members.size(),
                       null(), array(parts.members, member_type_));
  }
  if (standard && family == "basic_string" && outer == type) parts.format = kRecordText;
  std::sort(parts.places.begin(), parts.places.end());
  for (std::size_t i = 1; i < parts.places.size(); i++) {
    if (parts.places[i].first < parts.places[i - 1].second) return refused(", whose members share bytes");
  }
  return type_fields(name, kTypeStruct, parts.format, size, parts.members.size(), null(),
                     array(parts.members, member_type_));
}

// `new T[n]` of a class with a destructor has n in front. Null: this call has not.
llvm::Constant* Tables::array_with_count(const llvm::CallBase& call, const llvm::DIType* element) {
  const llvm::Function* callee = call.getCalledFunction();
  if (!callee || !callee->getName().startswith("_Zna") || !is_record(bare(element))) return nullptr;
  const auto& layout = module_.getDataLayout();
  const std::uint64_t width = layout.getPointerSize();
  auto counts = [&](const llvm::Value* at) {
    return llvm::any_of(at->users(), [&](const llvm::User* user) {
      return llvm::isa<llvm::BitCastInst>(user) && llvm::any_of(user->users(), [&](const llvm::User* one) {
               const auto* store = llvm::dyn_cast<llvm::StoreInst>(one);
               return store && store->getPointerOperand() == user &&
                      store->getValueOperand()->getType()->isIntegerTy(width * 8);
             });
    });
  };
  std::uint64_t front = counts(&call) ? width : 0;
  std::vector<std::uint64_t> begins;
  for (const llvm::User* user : call.users()) {
    const auto* part = llvm::dyn_cast<llvm::GEPOperator>(user);
    llvm::APInt offset(layout.getIndexTypeSizeInBits(call.getType()), 0);
    if (!part || !part->getSourceElementType()->isIntegerTy(8) || !part->accumulateConstantOffset(layout, offset))
      continue;
    begins.push_back(offset.getZExtValue());
    if (counts(part)) front = offset.getZExtValue() + width;
  }
  if (front == 0 || !llvm::is_contained(begins, front)) return nullptr;
  const auto* bare_element = bare(element);
  auto* list = variable(type_type_, "shadowib.type");
  list->setInitializer(type_fields("", kTypeArray, 0, 0, 0, this->type(bare_element), null()));
  auto* count = llvm::ConstantStruct::get(
      member_type_, {text("count"), integer(kTypeUnsigned, width), number((front - width) * 8), number(0)});
  auto* elements =
      llvm::ConstantStruct::get(member_type_, {text("elements"), address(list), number(front * 8), number(0)});
  auto* made = variable(type_type_, "shadowib.type");
  made->setInitializer(type_fields("array of " + qualified(bare_element), kTypeStruct, 0, front, 2, null(),
                                   array({count, elements}, member_type_)));
  return address(made);
}

// A guard's first byte tells that its variable is made; the second, that it is being made.
llvm::Constant* Tables::guard() {
  auto* table = variable(type_type_, "shadowib.type");
  table->setInitializer(type_fields("", kTypeArray, 0, 8, 8, plain_type(llvm::Type::getInt8Ty(context_)), null()));
  return address(table);
}

}  // namespace shadowib::portable::compiler
