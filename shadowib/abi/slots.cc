#include "shadowib/abi/slots.h"

#include <cerrno>
#include <tuple>

#include "shadowib/abi/refuse.h"

namespace shadowib {
namespace {

enum class Convention { kInt, kPtr, kMinus1, kZero, kVoid, kPost };

// Census spellings.
constexpr Convention convention_int = Convention::kInt;
constexpr Convention convention_ptr = Convention::kPtr;
constexpr Convention convention_minus1 = Convention::kMinus1;
constexpr Convention convention_zero = Convention::kZero;
constexpr Convention convention_void = Convention::kVoid;
constexpr Convention convention_post = Convention::kPost;

// A function of exactly the slot's type that refuses as `convention` says.
template <class Slot, Convention convention, unsigned id>
struct Refusing;

template <class R, class... Args, Convention convention, unsigned id>
struct Refusing<R (*)(Args...), convention, id> {
  static R call(Args... args) {
    warn_refused(id);
    if constexpr (convention == Convention::kPost) {
      std::tuple<Args...> all(args...);
      *std::get<2>(all) = std::get<1>(all);  // bad_wr: the first one, nothing was accepted
    }
    errno = EOPNOTSUPP;
    if constexpr (convention == Convention::kInt || convention == Convention::kPost)
      return EOPNOTSUPP;
    else if constexpr (convention == Convention::kMinus1)
      return -1;
    else if constexpr (!std::is_void_v<R>)
      return R{};
  }
};

// A slot the installed header does not know: no type to check against; the result register serves every convention.
template <Convention convention, unsigned id>
long refuse_untyped() {
  warn_refused(id);
  errno = EOPNOTSUPP;
  return convention == Convention::kInt ? EOPNOTSUPP : convention == Convention::kMinus1 ? -1 : 0;
}

template <Convention convention, unsigned id, class Slot>
void refuse(Slot* slot) {
  *slot = &Refusing<Slot, convention, id>::call;
}

// One census row applies to a struct if the row names it and the installed header has the member.
struct is_verbs_context {};
struct is_ibv_context_ops {};
struct is_ibv_qp_ex {};
struct is_ibv_cq_ex {};
struct is_ibv_wq {};
struct is_ibv_dm {};

template <class Tag>
void fill(Tag, auto* object) {
#define CENSUS_SLOT(id, type, member, handling, convention, man)                \
  if constexpr (std::is_same_v<Tag, is_##type> && requires { object->member; }) \
    refuse<convention_##convention, id>(&object->member);
#include "slot_table.inc"
#undef CENSUS_SLOT
}

using Untyped = void (*)();
constexpr std::size_t kCensusContextSlots = 0
#define NEWER_SLOT(id, convention) +1
#include "newer_slots.inc"
#undef NEWER_SLOT
    ;

}  // namespace

void fill_refusing_slots(NewestVerbsContext* context) {
  static const Untyped kAll[kCensusContextSlots] = {
#define NEWER_SLOT(id, convention) reinterpret_cast<Untyped>(&refuse_untyped<convention_##convention, id>),
#include "newer_slots.inc"
#undef NEWER_SLOT
  };
  static_assert(kNewerSlots <= kCensusContextSlots);
  for (std::size_t i = 0; i < kNewerSlots; ++i) context->newer[i] = kAll[i];
  fill(is_verbs_context{}, &context->context);
  fill(is_ibv_context_ops{}, &context->context.context.ops);
  context->context.sz = kNewestContextBytes;
  context->context.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
}

void fill_refusing_slots(ibv_qp_ex* qp) { fill(is_ibv_qp_ex{}, qp); }
void fill_refusing_slots(ibv_cq_ex* cq) { fill(is_ibv_cq_ex{}, cq); }
void fill_refusing_slots(ibv_wq* wq) { fill(is_ibv_wq{}, wq); }
void fill_refusing_slots(ibv_dm* dm) { fill(is_ibv_dm{}, dm); }

}  // namespace shadowib
