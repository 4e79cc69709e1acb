// Writes the tables of portable/tables.h into the module: types from debug information, functions, sites, globals.
#pragma once

#include <llvm/BinaryFormat/Dwarf.h>
#include <llvm/IR/Constants.h>
#include <llvm/IR/DebugInfoMetadata.h>

#include <map>
#include <string>
#include <vector>

#include "libraries/portable/compiler/ir/instrument.h"

namespace shadowib::portable::compiler {

class Tables {
 public:
  Tables(llvm::Module& module, const Records& records);

  llvm::Constant* type(const llvm::DIType* type);
  llvm::Constant* function(const FrameLayout& frame);
  llvm::Constant* site(const FrameLayout& frame, unsigned index);
  llvm::Constant* allocation(const llvm::CallBase& call, const llvm::DIType* type);
  llvm::Constant* text_allocation(const llvm::CallBase& call);
  // Where each live variable lies in the buffer of its frame.
  std::vector<std::uint64_t> offsets(const FrameLayout& frame, const SiteCall& site) const;
  // Tables of all variables and functions of the file, registered by a constructor. Call once, last.
  void finish();

 private:
  llvm::Constant* text(llvm::StringRef text);
  llvm::Constant* file_text(llvm::StringRef file);
  std::uint64_t source_hash() const;
  void find_records();
  llvm::Constant* fitting_type(const llvm::DIType* source, llvm::Type* type);
  llvm::Constant* integer(unsigned kind, std::uint64_t size);
  llvm::GlobalVariable* variable(llvm::StructType* type, llvm::StringRef name);
  llvm::GlobalVariable* functions_table(const llvm::Function& function);
  llvm::Constant* plain_type(llvm::Type* type);
  llvm::Constant* allocation_table(const llvm::CallBase& call, llvm::Constant* type);
  // classes.cc: what C++ has besides.
  struct Parts {
    std::vector<llvm::Constant*> members;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> places;  // bits
    std::string refusal;  // why an object of it cannot be saved; empty: it can
    unsigned format = 0;
  };
  llvm::Constant* class_of(const llvm::DICompositeType* type);
  void add_parts(const llvm::DICompositeType* type, std::uint64_t bit_offset, const std::string& base, Parts& parts);
  llvm::Constant* array_with_count(const llvm::CallBase& call, const llvm::DIType* element);
  llvm::Constant* guard();
  llvm::Constant* variable_type(const Variable& variable, const llvm::DILocalVariable* source);
  const llvm::DIType* source_type(llvm::Type* type) const;
  // signs.cc: the type of a value between two steps, and of the memory that one leads to; null: not known.
  const llvm::DIType* value_type(const llvm::Value* value, unsigned depth) const;
  const llvm::DIType* memory_type(const llvm::Value* address, unsigned depth) const;
  const llvm::DIType* argument_type(const llvm::CallBase& call, unsigned argument) const;
  const llvm::DIType* used_as(const llvm::Value* address, unsigned depth) const;
  unsigned sign_of(const llvm::Value* value, unsigned depth) const;
  llvm::Constant* array(std::vector<llvm::Constant*> elements, llvm::Type* type);
  llvm::Constant* number(std::uint64_t value) { return llvm::ConstantInt::get(i64_, value); }
  llvm::Constant* small(std::uint64_t value) { return llvm::ConstantInt::get(i32_, value); }
  llvm::Constant* null() { return llvm::ConstantPointerNull::get(pointer_); }
  llvm::Constant* address(llvm::Constant* of) { return llvm::ConstantExpr::getPointerCast(of, pointer_); }
  llvm::Constant* build_type(const llvm::DIType* type, llvm::GlobalVariable* table);
  llvm::Constant* composite(const llvm::DICompositeType* type);
  llvm::Constant* array_of(const llvm::DICompositeType* type);
  llvm::Constant* type_fields(llvm::StringRef name, unsigned kind, unsigned format, std::uint64_t size,
                              std::uint64_t count, llvm::Constant* element, llvm::Constant* members);
  void global_tables();
  void static_tables();
  void constructor(llvm::GlobalVariable* module_table);

  llvm::Module& module_;
  const Records& class_records_;
  llvm::LLVMContext& context_;
  llvm::IntegerType *i32_, *i64_;
  llvm::PointerType* pointer_;
  llvm::StructType *type_type_, *member_type_, *slot_type_, *site_type_, *function_type_, *global_type_,
      *allocation_type_, *static_type_, *module_type_;
  std::map<std::string, llvm::Constant*> texts_;
  llvm::DenseMap<const llvm::DIType*, llvm::GlobalVariable*> types_;
  llvm::DenseMap<llvm::Type*, llvm::GlobalVariable*> plain_types_;
  std::map<std::pair<const llvm::Function*, unsigned>, llvm::GlobalVariable*> sites_;
  std::map<const llvm::Function*, llvm::GlobalVariable*> functions_;
  std::map<std::string, const llvm::DIType*> records_;  // structs and unions by name; null: several of one name
  std::map<unsigned, llvm::GlobalVariable*> integers_;  // unnamed ones, by kind and size
  std::vector<llvm::Constant*> function_list_, global_list_, allocation_list_, static_list_;
};

}  // namespace shadowib::portable::compiler
