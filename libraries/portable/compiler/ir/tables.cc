#include "libraries/portable/compiler/ir/tables.h"

#include <llvm/IR/DebugInfo.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/Support/xxhash.h>
#include <llvm/Transforms/Utils/ModuleUtils.h>

#include "libraries/portable/compiler/facts.h"
#include "libraries/portable/tables.h"

namespace shadowib::portable::compiler {

Tables::Tables(llvm::Module& module, const Records& records)
    : module_(module),
      class_records_(records),
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
  allocation_type_ = make("shadowib.Allocation", {p, p, p, i32_, i32_});
  static_type_ = make("shadowib.Static", {p, p, p, p});
  module_type_ = make("shadowib.Module", {p, p, p, p, i32_, i32_, i32_, i32_, p, p, i64_, p, i64_});
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

llvm::GlobalVariable* Tables::variable(llvm::StructType* type, llvm::StringRef name) {
  return new llvm::GlobalVariable(module_, type, false, llvm::GlobalValue::PrivateLinkage,
                                  llvm::ConstantAggregateZero::get(type), name);
}

llvm::Constant* Tables::array(std::vector<llvm::Constant*> elements, llvm::Type* type) {
  if (elements.empty()) return null();
  auto* all = llvm::ConstantArray::get(llvm::ArrayType::get(type, elements.size()), elements);
  return address(new llvm::GlobalVariable(module_, all->getType(), false, llvm::GlobalValue::PrivateLinkage, all,
                                          "shadowib.table"));
}

// Several files may have one function, as an inline one. The linker keeps the code of one file, and by the same rule
// the table of that file. So the code that is entered and the program's list of functions agree on the table.
llvm::GlobalVariable* Tables::functions_table(const llvm::Function& function) {
  auto*& made = functions_[&function];
  if (!made) {
    const std::string name = "shadowib.function" + (function.hasLocalLinkage() ? "" : "." + function.getName().str());
    made = variable(function_type_, name);
    if (!function.hasLocalLinkage()) {
      made->setLinkage(function.getLinkage());
      made->setVisibility(function.getVisibility());
      if (function.hasComdat()) made->setComdat(module_.getOrInsertComdat(name));
    }
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
  const bool by_source = source && !facts().cplusplus;
  std::string name = by_source ? source->getName().str() : function.getName().str();
  const auto& hashes = facts().function_hash;
  const std::uint64_t hash = hashes.count(name) ? hashes.at(name) : 0;
  functions_table(function)->setInitializer(llvm::ConstantStruct::get(
      function_type_,
      {text(name), file_text(source ? source->getFilename() : ""), address(&function), array(sites, pointer_),
       number(hash), small(sites.size()), small(source ? source->getLine() : 0)}));
  return address(functions_table(function));
}

llvm::Constant* Tables::allocation(const llvm::CallBase& call, const llvm::DIType* type) {
  if (llvm::Constant* counted = array_with_count(call, type)) return allocation_table(call, counted);
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
                         facts().cplusplus ? text(call.getFunction()->getName()) : null(),
                         small(where ? where.getLine() : 0), small(where ? where.getCol() : 0)}));
  allocation_list_.push_back(address(made));
  return address(made);
}

// "./x.c" is x.c, so that two ways to name it are one file. Headers of the C++ library lie elsewhere for each
// architecture: c++/12/bits/new_allocator.h.
llvm::Constant* Tables::file_text(llvm::StringRef file) {
  const auto library = file.startswith("/") ? file.rfind("/include/c++/") : llvm::StringRef::npos;
  if (library != llvm::StringRef::npos) file = file.substr(library + sizeof "/include");
  while (file.consume_front("./")) {
  }
  return text(file);
}

std::uint64_t Tables::source_hash() const {
  std::string all;
  for (const std::string& one : facts().source_hash) all += one + ";";
  if (facts().cplusplus) return llvm::xxHash64(all);
  for (const auto* hashes : {&facts().function_hash, &facts().global_hash}) {
    for (const auto& [name, hash] : *hashes) all += name + "=" + std::to_string(hash) + ";";
  }
  return llvm::xxHash64(all);
}

void Tables::global_tables() {
  for (llvm::GlobalVariable& global : module_.globals()) {
    const llvm::StringRef name = global.getName();
    if (global.isDeclarationForLinker() || name.startswith("llvm.") || name.startswith("shadowib.")) continue;
    if (global.getSection() == "llvm.metadata") continue;  // for the compiler, as the text of an annotation
    llvm::SmallVector<llvm::DIGlobalVariableExpression*, 1> sources;
    global.getDebugInfo(sources);
    const llvm::DIGlobalVariable* source = sources.empty() ? nullptr : sources[0]->getVariable();
    // Of C++: guards of static variables, and what references of the file keep alive.
    const bool of_cplusplus = facts().cplusplus && name.startswith("_ZG");
    if (!source && !global.isConstant() && !of_cplusplus) continue;
    // Told when the image is written: a program without checkpoints is not harmed.
    unsigned flags = global.isThreadLocal() ? kGlobalThread + 0U : 0U;
    if (global.isConstant()) flags |= kGlobalConstant;
    if (global.hasLocalLinkage()) flags |= kGlobalLocal;
    if (!source && !of_cplusplus) flags |= kGlobalLiteral;
    llvm::Type* value = global.getValueType();
    if (global.getMetadata("shadowib.padded")) value = value->getStructElementType(0);
    auto size = module_.getDataLayout().getTypeAllocSize(value).getFixedSize();
    auto* made = variable(global_type_, "shadowib.global");
    llvm::Constant* shown = name.startswith("_ZGV") && global.hasInitializer() && of_cplusplus && size == 8
                                ? guard()
                                : fitting_type(source ? source->getType() : nullptr, value);
    std::string hashed = source ? source->getLinkageName().str() : "";
    if (source && hashed.empty()) hashed = source->getName().str();
    made->setInitializer(llvm::ConstantStruct::get(
        global_type_,
        {text(global.getName()),
         file_text(source ? source->getFilename() : llvm::StringRef(module_.getSourceFileName())),
         global.isThreadLocal() ? null() : address(&global), shown, number(size),
         number(source ? facts().global_hash[hashed] : 0), small(source ? source->getLine() : 0), small(flags)}));
    global_list_.push_back(address(made));
  }
}

// A process that comes from an image has not made them itself, and must destroy them all the same. Variables outside
// of functions are made before main, in each process.
void Tables::static_tables() {
  const llvm::Function* registers = module_.getFunction("__cxa_atexit");
  if (!facts().cplusplus || !registers) return;
  std::vector<llvm::CallBase*> calls;
  for (const llvm::User* user : registers->users()) {
    auto* call = llvm::dyn_cast<llvm::CallBase>(const_cast<llvm::User*>(user));
    if (call && call->getFunction()->getSection() != ".text.startup" && call->arg_size() == 3) calls.push_back(call);
  }
  for (llvm::CallBase* call : calls) {
    auto* destroy = llvm::dyn_cast<llvm::Constant>(call->getArgOperand(0));
    auto* object = llvm::dyn_cast<llvm::Constant>(call->getArgOperand(1));
    auto* library = llvm::dyn_cast<llvm::Constant>(call->getArgOperand(2));
    if (!destroy || !object || !library || !llvm::isa<llvm::GlobalVariable>(object->stripPointerCasts())) continue;
    auto* order = new llvm::GlobalVariable(module_, i64_, false, llvm::GlobalValue::InternalLinkage, number(0),
                                           "shadowib.order");
    auto* known = variable(global_type_, "shadowib.global");
    known->setInitializer(llvm::ConstantStruct::get(
        global_type_,
        {text((object->stripPointerCasts()->getName() + ".order").str()), file_text(module_.getSourceFileName()),
         address(order), integer(kTypeUnsigned, 8), number(8), number(0), small(0), small(kGlobalLocal)}));
    global_list_.push_back(address(known));
    auto* made = variable(static_type_, "shadowib.static");
    made->setInitializer(llvm::ConstantStruct::get(
        static_type_, {address(destroy), address(object), address(library), address(order)}));
    static_list_.push_back(address(made));
    auto callee = module_.getOrInsertFunction(
        "shadowib_portable_made", llvm::FunctionType::get(llvm::Type::getVoidTy(context_), {pointer_}, false));
    llvm::CallInst::Create(callee, {address(made)}, "", call);
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
    // Another file may take the address of one that it sees; of one that each file has, that file has it, too.
    const bool seen = facts().cplusplus ? function.hasExternalLinkage() : !function.hasLocalLinkage();
    if (function.hasAddressTaken() || (seen && function.getSubprogram())) plain.push_back(&function);
  }
  for (const llvm::Function* function : plain) {
    FrameLayout frame;
    frame.function = const_cast<llvm::Function*>(function);
    this->function(frame);
  }
  global_tables();
  static_tables();
  auto* table = variable(module_type_, "shadowib.module");
  table->setInitializer(llvm::ConstantStruct::get(
      module_type_,
      {file_text(module_.getSourceFileName()), text(module_.getTargetTriple()), array(function_list_, pointer_),
       array(global_list_, pointer_), small(kTablesVersion), small(function_list_.size()), small(global_list_.size()),
       small(allocation_list_.size()), null(), array(allocation_list_, pointer_), number(source_hash()),
       array(static_list_, pointer_), number(static_list_.size())}));
  constructor(table);
}

}  // namespace shadowib::portable::compiler
