#include "libraries/portable/compiler/ast/records.h"

#include <clang/AST/AST.h>
#include <clang/AST/ASTConsumer.h>
#include <clang/AST/Attr.h>
#include <clang/AST/DeclCXX.h>
#include <clang/AST/ExprCXX.h>
#include <clang/AST/RecursiveASTVisitor.h>
#include <clang/Frontend/CompilerInstance.h>

#include <set>
#include <vector>

namespace shadowib::portable::compiler {
namespace {

class Finder : public clang::RecursiveASTVisitor<Finder> {
 public:
  explicit Finder(clang::ASTContext& context) : context_(context) {}

  bool shouldVisitImplicitCode() const { return true; }
  bool shouldVisitTemplateInstantiations() const { return true; }

  bool VisitExpr(clang::Expr* expression) {
    add(expression->getType());
    return true;
  }
  bool VisitVarDecl(clang::VarDecl* variable) {
    add(variable->getType().getNonReferenceType());
    return true;
  }

  std::vector<clang::QualType> found;

 private:
  void add(clang::QualType type) {
    if (type.isNull() || type->isDependentType()) return;
    type = context_.getBaseElementType(type).getCanonicalType().getUnqualifiedType();
    const auto* record = type->getAsCXXRecordDecl();
    if (!record || !record->isCompleteDefinition() || record->isDependentType() || record->isInvalidDecl()) return;
    if (!seen_.insert(record->getCanonicalDecl()).second) return;
    found.push_back(type);
    for (const clang::CXXBaseSpecifier& base : record->bases()) add(base.getType());
    for (const clang::FieldDecl* field : record->fields()) add(field->getType());
  }

  clang::ASTContext& context_;
  std::set<const clang::CXXRecordDecl*> seen_;
};

}  // namespace

void mark_records(clang::CompilerInstance& compiler) {
  auto& context = compiler.getASTContext();
  auto* unit = context.getTranslationUnitDecl();
  Finder finder(context);
  finder.TraverseDecl(unit);
  unsigned number = 0;
  for (clang::QualType type : finder.found) {
    auto& name = context.Idents.get("shadowib.record." + std::to_string(number++));
    const clang::QualType pointer = context.getPointerType(type);
    auto* variable = clang::VarDecl::Create(context, unit, clang::SourceLocation(), clang::SourceLocation(), &name,
                                            pointer, context.getTrivialTypeSourceInfo(pointer), clang::SC_None);
    variable->addAttr(clang::AsmLabelAttr::CreateImplicit(context, name.getName(), true));
    unit->addDecl(variable);
    compiler.getASTConsumer().HandleTopLevelDecl(clang::DeclGroupRef(variable));
  }
}

}  // namespace shadowib::portable::compiler
