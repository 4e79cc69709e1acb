#include "libraries/portable/compiler/ir/tables.h"

#include <llvm/IR/DebugInfo.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/Support/xxhash.h>
#include <llvm/Transforms/Utils/ModuleUtils.h>

#include "libraries/portable/compiler/facts.h"
#include "libraries/portable/tables.h"

namespace shadowib::portable::compiler {

Tables::Tables(llvm::Module& module)
    : module_(module),
      context_(module.getContext()),
      i32_(llvm::Type::getInt32Ty(context_)),
      i64_(llvm::Type::getInt64Ty(context_)),
      pointer_(llvm::Type::getInt8PtrTy(context_)) {
  auto* p = pointer_;
  auto make = [&](const char* name, llvm::ArrayRef<llvm::Type*> fields) {
    return llvm::StructType::create(context_, fields, name);
  };
  type_type_ = make("shadowib.Type", {p, i32_, i32_, i64_, i64_, p, p});
  member_type_ = make("shadowib.Member", {p, p, i64_, i64_});
  slot_type_ = make("shadowib.Slot", {p, p, i64_, i64_, i32_, i32_});
  site_type_ = make("shadowib.Site", {p, p, p, i64_, i32_, i32_, i32_, i32_});
  function_type_ = make("shadowib.Function", {p, p, p, p, i64_, i32_, i32_});
  global_type_ = make("shadowib.Global", {p, p, p, p, i64_, i64_, i32_, i32_});
  allocation_type_ = make("shadowib.Allocation", {p, p, i32_, i32_});
  module_type_ = make("shadowib.Module", {p, p, p, p, i32_, i32_, i32_, i32_, p, p, i64_});
  find_records();
}

llvm::Constant* Tables::text(llvm::StringRef text) {
  auto& made = texts_[text.str()];
  if (!made) {
    auto* bytes = llvm::ConstantDataArray::getString(context_, text);
    auto* global = new llvm::GlobalVariable(module_, bytes->getType(), true, llvm::GlobalValue::PrivateLinkage, bytes,
                                            "shadowib.text");
    global->setUnnamedAddr(llvm::GlobalValue::UnnamedAddr::Global);
    made = address(global);
  }
  return made;
}

llvm::GlobalVariable* Tables::variable(llvm::StructType* type, const char* name) {
  return new llvm::GlobalVariable(module_, type, false, llvm::GlobalValue::PrivateLinkage,
                                  llvm::ConstantAggregateZero::get(type), name);
}

llvm::Constant* Tables::array(std::vector<llvm::Constant*> elements, llvm::Type* type) {
  if (elements.empty()) return null();
  auto* all = llvm::ConstantArray::get(llvm::ArrayType::get(type, elements.size()), elements);
  return address(new llvm::GlobalVariable(module_, all->getType(), false, llvm::GlobalValue::PrivateLinkage, all,
                                          "shadowib.table"));
}

llvm::GlobalVariable* Tables::functions_table(const llvm::Function& function) {
  auto*& made = functions_[&function];
  if (!made) {
    made = variable(function_type_, "shadowib.function");
    function_list_.push_back(address(made));
  }
  return made;
}

static const llvm::DILocalVariable* declared(const llvm::Value* address) {
  for (llvm::DbgVariableIntrinsic* use : llvm::FindDbgAddrUses(const_cast<llvm::Value*>(address))) {
    if (use->getExpression()->getNumElements() == 0) return use->getVariable();
  }
  return nullptr;
}

std::vector<std::uint64_t> Tables::offsets(const FrameLayout& frame, const SiteCall& site) const {
  std::vector<std::uint64_t> result;
  std::uint64_t at = 0;
  for (unsigned i : site.live) {
    if (frame.variables[i].registered) at += 8;
    result.push_back(at);
    at += (frame.variables[i].size + 15) / 16 * 16;
    if (frame.variables[i].registered) at += 8;
  }
  return result;
}

llvm::Constant* Tables::site(const FrameLayout& frame, unsigned index) {
  auto& made = sites_[{frame.function, index}];
  if (made) return address(made);
  made = variable(site_type_, "shadowib.site");
  const SiteCall& site = frame.sites[index];
  auto offset = offsets(frame, site);
  std::vector<llvm::Constant*> slots;
  std::uint64_t size = 0;
  for (unsigned i = 0; i < site.live.size(); i++) {
    const Variable& variable = frame.variables[site.live[i]];
    const llvm::DILocalVariable* source = declared(variable.address);
    unsigned flags = (variable.registered ? kSlotAddress + 0U : 0U) | (source ? 0U : kSlotUnnamed + 0U);
    slots.push_back(llvm::ConstantStruct::get(
        slot_type_, {source ? text(source->getName()) : text(""), variable_type(variable, source),
                     number(variable.size), number(offset[i]), small(source ? source->getLine() : 0), small(flags)}));
    size = offset[i] + variable.size;
  }
  llvm::DebugLoc where = site.call->getDebugLoc();
  const auto* callee = llvm::dyn_cast<llvm::Function>(site.call->getCalledOperand()->stripPointerCasts());
  made->setInitializer(llvm::ConstantStruct::get(
      site_type_, {address(functions_table(*frame.function)), array(slots, slot_type_),
                   text(callee ? callee->getName() : "a pointer"), number((size + 15) / 16 * 16), small(slots.size()),
                   small(index), small(where ? where.getLine() : 0), small(where ? where.getCol() : 0)}));
  return address(made);
}

llvm::Constant* Tables::function(const FrameLayout& frame) {
  llvm::Function& function = *frame.function;
  std::vector<llvm::Constant*> sites;
  for (unsigned i = 0; i < frame.sites.size(); i++) sites.push_back(site(frame, i));
  const auto* source = function.getSubprogram();
  std::string name = source ? source->getName().str() : function.getName().str();
  const auto& hashes = facts().function_hash;
  const std::uint64_t hash = hashes.count(name) ? hashes.at(name) : 0;
  functions_table(function)->setInitializer(llvm::ConstantStruct::get(
      function_type_,
      {text(name), file_text(source ? source->getFilename() : ""), address(&function), array(sites, pointer_),
       number(hash), small(sites.size()), small(source ? source->getLine() : 0)}));
  return address(functions_table(function));
}

llvm::Constant* Tables::allocation(const llvm::CallBase& call, const llvm::DIType* type) {
  const bool sized = type && type->getSizeInBits() > 0;
  return allocation_table(call, sized || (type && llvm::isa<llvm::DIDerivedType>(type)) ? this->type(type) : null());
}

llvm::Constant* Tables::text_allocation(const llvm::CallBase& call) {
  return allocation_table(call, plain_type(llvm::Type::getInt8Ty(context_)));
}

llvm::Constant* Tables::allocation_table(const llvm::CallBase& call, llvm::Constant* type) {
  llvm::DebugLoc where = call.getDebugLoc();
  auto* made = variable(allocation_type_, "shadowib.allocation");
  made->setInitializer(llvm::ConstantStruct::get(
      allocation_type_, {type, file_text(where ? llvm::StringRef(where->getFilename()) : module_.getSourceFileName()),
                         small(where ? where.getLine() : 0), small(where ? where.getCol() : 0)}));
  allocation_list_.push_back(address(made));
  return address(made);
}

// "./x.c" is x.c, so that two ways to name it are one file.
llvm::Constant* Tables::file_text(llvm::StringRef file) {
  while (file.consume_front("./")) {
  }
  return text(file);
}

std::uint64_t Tables::source_hash() const {
  std::string all;
  for (const auto* hashes : {&facts().function_hash, &facts().global_hash}) {
    for (const auto& [name, hash] : *hashes) all += name + "=" + std::to_string(hash) + ";";
  }
  return llvm::xxHash64(all);
}

void Tables::global_tables() {
  for (llvm::GlobalVariable& global : module_.globals()) {
    if (global.isDeclaration() || global.getName().startswith("llvm.") || global.getName().startswith("shadowib."))
      continue;
    llvm::SmallVector<llvm::DIGlobalVariableExpression*, 1> sources;
    global.getDebugInfo(sources);
    const llvm::DIGlobalVariable* source = sources.empty() ? nullptr : sources[0]->getVariable();
    if (!source && !global.isConstant()) continue;
    // Told when the image is written: a program without checkpoints is not harmed.
    unsigned flags = global.isThreadLocal() ? kGlobalThread + 0U : 0U;
    if (global.isConstant()) flags |= kGlobalConstant;
    if (global.hasLocalLinkage()) flags |= kGlobalLocal;
    if (!source) flags |= kGlobalLiteral;
    llvm::Type* value = global.getValueType();
    if (global.getMetadata("shadowib.padded")) value = value->getStructElementType(0);
    auto size = module_.getDataLayout().getTypeAllocSize(value).getFixedSize();
    auto* made = variable(global_type_, "shadowib.global");
    made->setInitializer(llvm::ConstantStruct::get(
        global_type_, {text(global.getName()),
                       file_text(source ? source->getFilename() : llvm::StringRef(module_.getSourceFileName())),
                       global.isThreadLocal() ? null() : address(&global),
                       fitting_type(source ? source->getType() : nullptr, value), number(size),
                       number(source ? facts().global_hash[source->getName().str()] : 0),
                       small(source ? source->getLine() : 0), small(flags)}));
    global_list_.push_back(address(made));
  }
}

void Tables::constructor(llvm::GlobalVariable* table) {
  auto* type = llvm::FunctionType::get(llvm::Type::getVoidTy(context_), {pointer_}, false);
  auto make = [&](const char* name, const char* called) {
    auto* function = llvm::Function::Create(llvm::FunctionType::get(llvm::Type::getVoidTy(context_), false),
                                            llvm::GlobalValue::InternalLinkage, name, module_);
    llvm::IRBuilder<> builder(llvm::BasicBlock::Create(context_, "", function));
    builder.CreateCall(module_.getOrInsertFunction(called, type), {address(table)});
    builder.CreateRetVoid();
    return function;
  };
  llvm::appendToGlobalCtors(module_, make("shadowib.register", "shadowib_portable_register"), 101);
  llvm::appendToGlobalDtors(module_, make("shadowib.unregister", "shadowib_portable_unregister"), 101);
}

void Tables::finish() {
  std::vector<const llvm::Function*> plain;
  for (llvm::Function& function : module_) {
    if (function.isDeclarationForLinker() || functions_.count(&function)) continue;
    // Another file may take the address of one that it sees.
    if (function.hasAddressTaken() || (!function.hasLocalLinkage() && function.getSubprogram()))
      plain.push_back(&function);
  }
  for (const llvm::Function* function : plain) {
    FrameLayout frame;
    frame.function = const_cast<llvm::Function*>(function);
    this->function(frame);
  }
  global_tables();
  auto* table = variable(module_type_, "shadowib.module");
  table->setInitializer(llvm::ConstantStruct::get(
      module_type_,
      {file_text(module_.getSourceFileName()), text(module_.getTargetTriple()), array(function_list_, pointer_),
       array(global_list_, pointer_), small(kTablesVersion), small(function_list_.size()), small(global_list_.size()),
       small(allocation_list_.size()), null(), array(allocation_list_, pointer_), number(source_hash())}));
  constructor(table);
}

}  // namespace shadowib::portable::compiler
