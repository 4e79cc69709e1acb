// The two ways of a frame: out of it behind a call (LEAVE), and back into it (ENTER).
//
//   entry:    variables; if (mode == ENTER) goto enter; else body
//   enter:    switch (shadowib_portable_enter(function)) -> enter.i
//   enter.i:  addresses of variables into the buffer; fill; load the values; the same call, without arguments; goto
//   check.i call:     result = call; goto check.i check.i:  if (mode == LEAVE) goto leave.i; else after leave.i:
//   values and addresses of variables into the buffer; keep; return
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/MDBuilder.h>

#include "libraries/portable/compiler/ir/instrument.h"
#include "libraries/portable/compiler/ir/tables.h"
#include "libraries/portable/tables.h"

namespace shadowib::portable::compiler {
namespace {

class Ways {
 public:
  Ways(FrameLayout& frame, Tables& tables)
      : frame_(frame),
        function_(*frame.function),
        module_(*function_.getParent()),
        context_(function_.getContext()),
        tables_(tables) {}

  void write() {
    // Returning from a function that says it never returns, and results that say they are never null.
    function_.removeFnAttr(llvm::Attribute::NoReturn);
    function_.removeFnAttr(llvm::Attribute::AlwaysInline);
    function_.addFnAttr(llvm::Attribute::NoInline);  // variables keep their addresses, and frames their names
    drop_promises(function_);
    drop_effects(function_);
    // Calls that enter pass no arguments.
    for (unsigned i = 0; i < function_.arg_size(); i++) {
      for (auto kind : kPromises) function_.removeParamAttr(i, kind);
    }
    llvm::BasicBlock* entry = &function_.getEntryBlock();
    llvm::BasicBlock* body = entry->getSingleSuccessor();
    auto* enter = llvm::BasicBlock::Create(context_, "enter", &function_);
    entry->getTerminator()->eraseFromParent();
    llvm::IRBuilder<> builder(entry);
    builder.CreateCondBr(mode_is(builder, kModeEnter), enter, body, unlikely());

    llvm::Constant* table = tables_.function(frame_);
    builder.SetInsertPoint(enter);
    auto* which = call(builder, "shadowib_portable_enter", builder.getInt32Ty(), {table});
    auto* nowhere = llvm::BasicBlock::Create(context_, "enter.nowhere", &function_);
    auto* choice = builder.CreateSwitch(which, nowhere, frame_.sites.size());
    llvm::IRBuilder<>(nowhere).CreateUnreachable();
    for (unsigned i = 0; i < frame_.sites.size(); i++) choice->addCase(builder.getInt32(i), write_site(i));
  }

 private:
  static constexpr llvm::Attribute::AttrKind kPromises[] = {llvm::Attribute::NonNull, llvm::Attribute::NoUndef,
                                                            llvm::Attribute::Dereferenceable,
                                                            llvm::Attribute::DereferenceableOrNull};

  template <typename Place>
  void drop_promises(Place& place) {
    for (auto kind : {llvm::Attribute::NonNull, llvm::Attribute::NoUndef, llvm::Attribute::Dereferenceable,
                      llvm::Attribute::DereferenceableOrNull, llvm::Attribute::Alignment, llvm::Attribute::NoAlias})
      place.removeRetAttr(kind);
  }

  // Leaving and entering write memory, whatever the source says: calls must neither be merged nor moved.
  template <typename Place>
  void drop_effects(Place& place) {
    for (auto kind : {llvm::Attribute::ReadNone, llvm::Attribute::ReadOnly, llvm::Attribute::WriteOnly,
                      llvm::Attribute::ArgMemOnly, llvm::Attribute::InaccessibleMemOnly,
                      llvm::Attribute::InaccessibleMemOrArgMemOnly, llvm::Attribute::Speculatable,
                      llvm::Attribute::WillReturn, llvm::Attribute::NoSync, llvm::Attribute::NoFree})
      place.removeFnAttr(kind);
  }

  llvm::MDNode* unlikely() { return llvm::MDBuilder(context_).createBranchWeights(1, 1U << 20); }

  llvm::Value* mode_is(llvm::IRBuilder<>& builder, Mode mode) {
    auto* variable = module_.getOrInsertGlobal("shadowib_portable_mode", builder.getInt32Ty());
    auto* now = builder.CreateLoad(builder.getInt32Ty(), variable, true, "mode");
    return builder.CreateICmpEQ(now, builder.getInt32(mode));
  }

  llvm::CallInst* call(llvm::IRBuilder<>& builder, const char* name, llvm::Type* result,
                       llvm::ArrayRef<llvm::Value*> arguments) {
    std::vector<llvm::Type*> types;
    for (llvm::Value* argument : arguments) types.push_back(argument->getType());
    auto callee = module_.getOrInsertFunction(name, llvm::FunctionType::get(result, types, false));
    auto* made = builder.CreateCall(callee, arguments);
    made->addFnAttr(llvm::Attribute::Cold);
    made->addFnAttr(llvm::Attribute::NoUnwind);
    return made;
  }

  llvm::Value* place(llvm::IRBuilder<>& builder, llvm::Value* buffer, std::uint64_t offset) {
    return builder.CreateConstGEP1_64(builder.getInt8Ty(), buffer, offset);
  }
  llvm::Value* typed_place(llvm::IRBuilder<>& builder, llvm::Value* buffer, std::uint64_t offset, llvm::Type* type) {
    return builder.CreateBitCast(place(builder, buffer, offset), type->getPointerTo());
  }

  void store_addresses(llvm::IRBuilder<>& builder, llvm::Value* buffer, const SiteCall& site,
                       const std::vector<std::uint64_t>& offsets) {
    for (unsigned i = 0; i < site.live.size(); i++) {
      const Variable& variable = frame_.variables[site.live[i]];
      if (!variable.registered) continue;
      auto* number = builder.CreatePtrToInt(variable.address, builder.getInt64Ty());
      builder.CreateAlignedStore(number, typed_place(builder, buffer, offsets[i] - 8, builder.getInt64Ty()),
                                 llvm::Align(8));
    }
  }

  void copy_values(llvm::IRBuilder<>& builder, llvm::Value* buffer, const SiteCall& site,
                   const std::vector<std::uint64_t>& offsets, bool out) {
    for (unsigned i = 0; i < site.live.size(); i++) {
      const Variable& variable = frame_.variables[site.live[i]];
      llvm::Align align(8);
      if (variable.promotable) {
        auto* there = typed_place(builder, buffer, offsets[i], variable.type);
        if (out) {
          builder.CreateAlignedStore(builder.CreateLoad(variable.type, variable.address), there, align);
        } else {
          builder.CreateStore(builder.CreateAlignedLoad(variable.type, there, align), variable.address);
        }
        continue;
      }
      auto* there = place(builder, buffer, offsets[i]);
      if (variable.registered) continue;  // the runtime copies these
      if (out) {
        builder.CreateMemCpy(there, align, variable.address, llvm::Align(1), variable.size);
      } else {
        builder.CreateMemCpy(variable.address, llvm::Align(1), there, align, variable.size);
      }
    }
  }

  // An argument of the call that enters: the callee takes its own from the buffer. Only memory of this frame must be
  // named.
  llvm::Value* entering_argument(llvm::IRBuilder<>& builder, llvm::CallBase* original, unsigned i) {
    llvm::Value* argument = original->getArgOperand(i);
    if (original->paramHasAttr(i, llvm::Attribute::StructRet) &&
        llvm::isa<llvm::AllocaInst>(argument->stripPointerCasts()))
      return builder.CreateBitCast(argument->stripPointerCasts(), argument->getType());
    if (llvm::isa<llvm::Constant>(argument)) return argument;
    if (llvm::isa<llvm::AllocaInst>(argument->stripInBoundsConstantOffsets()) &&
        llvm::isa<llvm::AllocaInst>(argument))
      return argument;
    if (i < original->arg_size() && original->isByValArgument(i)) {
      auto* room =
          new llvm::AllocaInst(original->getParamByValType(i), 0, nullptr, original->getParamAlign(i).valueOrOne(),
                               "byvalue.room", &function_.getEntryBlock().front());
      return room;
    }
    return llvm::Constant::getNullValue(argument->getType());
  }

  llvm::BasicBlock* write_site(unsigned i) {
    SiteCall& site = frame_.sites[i];
    llvm::Value* table = tables_.site(frame_, i);
    std::vector<std::uint64_t> offsets = tables_.offsets(frame_, site);
    auto name = std::to_string(i);
    auto* check = llvm::BasicBlock::Create(context_, "check." + name, &function_);
    auto* leave = llvm::BasicBlock::Create(context_, "leave." + name, &function_);
    auto* enter = llvm::BasicBlock::Create(context_, "enter." + name, &function_);
    site.call->removeFnAttr(llvm::Attribute::NoReturn);
    if (auto* callee = llvm::dyn_cast<llvm::Function>(site.call->getCalledOperand()->stripPointerCasts())) {
      callee->removeFnAttr(llvm::Attribute::NoReturn);
      drop_effects(*callee);
    }
    drop_promises(*site.call);
    drop_effects(*site.call);

    site.last->getTerminator()->replaceUsesOfWith(site.after, check);
    llvm::IRBuilder<> builder(check);
    builder.CreateCondBr(mode_is(builder, kModeLeave), leave, site.after, unlikely());

    builder.SetInsertPoint(leave);
    auto* buffer = call(builder, "shadowib_portable_leave", builder.getInt8PtrTy(), {table});
    store_addresses(builder, buffer, site, offsets);
    copy_values(builder, buffer, site, offsets, true);
    call(builder, "shadowib_portable_keep", builder.getVoidTy(), {table});
    llvm::Type* result = function_.getReturnType();
    if (result->isVoidTy()) {
      builder.CreateRetVoid();
    } else {
      builder.CreateRet(llvm::Constant::getNullValue(result));
    }

    builder.SetInsertPoint(enter);
    buffer = call(builder, "shadowib_portable_frame", builder.getInt8PtrTy(), {table});
    store_addresses(builder, buffer, site, offsets);
    call(builder, "shadowib_portable_fill", builder.getVoidTy(), {table});
    copy_values(builder, buffer, site, offsets, false);
    auto* again = llvm::cast<llvm::CallBase>(site.call->clone());
    for (unsigned j = 0; j < again->arg_size(); j++) {
      again->setArgOperand(j, entering_argument(builder, site.call, j));
      for (auto kind : kPromises) again->removeParamAttr(j, kind);
    }
    builder.Insert(again);
    if (site.callee)
      again->setCalledOperand(new llvm::LoadInst(site.callee->getAllocatedType(), site.callee, "called", again));
    if (auto* invoke = llvm::dyn_cast<llvm::InvokeInst>(again)) {
      auto* way = llvm::BasicBlock::Create(context_, "way." + name, &function_);
      invoke->setNormalDest(way);
      builder.SetInsertPoint(way);
    }
    if (site.result) builder.CreateStore(again, site.result);
    builder.CreateBr(check);
    return enter;
  }

  FrameLayout& frame_;
  llvm::Function& function_;
  llvm::Module& module_;
  llvm::LLVMContext& context_;
  Tables& tables_;
};

}  // namespace

void write_ways(FrameLayout& frame, Tables& tables) { Ways(frame, tables).write(); }

}  // namespace shadowib::portable::compiler
