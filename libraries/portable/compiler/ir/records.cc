#include <llvm/BinaryFormat/Dwarf.h>

#include "libraries/portable/compiler/ir/instrument.h"

namespace shadowib::portable::compiler {

Records::Records(llvm::Module& module) {
  std::vector<llvm::GlobalVariable*> marks;
  for (llvm::GlobalVariable& global : module.globals()) {
    if (global.getName().startswith("shadowib.record.")) marks.push_back(&global);
  }
  for (llvm::GlobalVariable* mark : marks) {
    llvm::SmallVector<llvm::DIGlobalVariableExpression*, 1> sources;
    mark->getDebugInfo(sources);
    const auto* pointer =
        sources.empty() ? nullptr : llvm::dyn_cast_or_null<llvm::DIDerivedType>(sources[0]->getVariable()->getType());
    const auto* made = pointer ? llvm::dyn_cast_or_null<llvm::DICompositeType>(pointer->getBaseType()) : nullptr;
    if (made) classes_[mark->getValueType()->getPointerElementType()] = made;
    mark->eraseFromParent();
  }
}

bool Records::by_reference(const llvm::Type* type) const {
  const llvm::DICompositeType* made = of(type);
  return made && (made->getFlags() & llvm::DINode::FlagTypePassByReference);
}

}  // namespace shadowib::portable::compiler
