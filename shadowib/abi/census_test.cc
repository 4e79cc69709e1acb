// Nothing of the installed rdma-core is unhandled: every exported symbol and every struct slot stands in the census.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>

#include <cstring>
#include <memory>

#include "shadowib/abi/census_reader.h"
#include "shadowib/abi/refuse.h"
#include "shadowib/abi/slots.h"

namespace shadowib::census {
namespace {

// What of `symbols` the census lacks, by name.
std::vector<std::string> unhandled(const std::vector<Symbol>& symbols) {
  const std::set<std::string> known = census_symbols();
  std::vector<std::string> missing;
  for (const Symbol& s : symbols)
    if (!known.count(s.text())) missing.push_back(s.text());
  return missing;
}

std::vector<std::string> unhandled_slots(const std::string& header) {
  const std::set<std::string> known = census_slots();
  std::vector<std::string> missing;
  for (const std::string& slot : function_slots(header))
    if (!known.count(slot)) missing.push_back(slot);
  return missing;
}

std::vector<Symbol> exported(const std::string& file) {
  std::vector<Symbol> symbols;
  for (const Symbol& s : dynamic_symbols(file))
    if (s.defined) symbols.push_back(s);
  return symbols;
}

TEST(Census, KnowsEverySymbolOfTheInstalledLibrary) {
  std::vector<Symbol> symbols = exported(SHADOWIB_IBVERBS_FILE);
  ASSERT_GE(symbols.size(), 180u) << SHADOWIB_IBVERBS_FILE;
  for (const std::string& name : unhandled(symbols))
    ADD_FAILURE() << name << " is exported by " SHADOWIB_IBVERBS_FILE " and missing in shadowib/abi/verbs.def";
}

TEST(Census, KnowsWhatOtherLibrariesImport) {
  for (const char* file : {SHADOWIB_LIBRARY_DIR "/librdmacm.so.1", SHADOWIB_LIBRARY_DIR "/libmlx5.so.1"}) {
    std::vector<Symbol> imports;
    for (Symbol s : dynamic_symbols(file)) {
      s.is_default = true;
      if (!s.defined && s.version.rfind("IBVERBS_", 0) == 0) imports.push_back(s);
    }
    EXPECT_GE(imports.size(), 30u) << file;
    for (const std::string& name : unhandled(imports)) ADD_FAILURE() << name << " is imported by " << file;
  }
}

TEST(Census, AnUnknownSymbolIsFoundByName) {
  std::vector<Symbol> symbols = exported(SHADOWIB_IBVERBS_FILE);
  symbols.push_back({"ibv_frobnicate", "IBVERBS_1.99", true, true, false});
  symbols.push_back({"ibv_open_device", "IBVERBS_1.98", true, true, false});
  EXPECT_EQ(unhandled(symbols),
            (std::vector<std::string>{"ibv_frobnicate@@IBVERBS_1.99", "ibv_open_device@@IBVERBS_1.98"}));
}

TEST(Census, KnowsEverySlotOfTheInstalledHeader) {
  std::string header = read_text(SHADOWIB_VERBS_HEADER);
  ASSERT_GE(function_slots(header).size(), 100u);
  for (const std::string& slot : unhandled_slots(header))
    ADD_FAILURE() << slot << " is declared in " SHADOWIB_VERBS_HEADER " and missing in shadowib/abi/verbs.def";
}

TEST(Census, AnUnknownSlotIsFoundByName) {
  std::string header = read_text(SHADOWIB_VERBS_HEADER);
  const std::string head = "\nstruct verbs_context {";
  std::size_t at = header.find(head);
  ASSERT_NE(at, std::string::npos);
  header.insert(at + head.size(), "\n\tint (*frobnicate)(struct ibv_context *context);");
  EXPECT_EQ(unhandled_slots(header), std::vector<std::string>{"verbs_context.frobnicate"});
}

// No slot of a filled struct is null: placeholders and priv apart, each pointer-sized word of the slots' range is
// set.
TEST(Slots, AreAllFilled) {
  auto context = std::make_unique<NewestVerbsContext>();
  std::memset(context.get(), 0, sizeof(*context));
  fill_refusing_slots(context.get());
  for (std::size_t i = 0; i < kNewerSlots; ++i) EXPECT_NE(context->newer[i], nullptr) << i;
  EXPECT_EQ(context->context.sz, kNewestContextBytes);
  EXPECT_EQ(verbs_get_ctx(&context->context.context), &context->context);
  auto qp = std::make_unique<ibv_qp_ex>();
  auto cq = std::make_unique<ibv_cq_ex>();
  ibv_wq wq{};
  ibv_dm dm{};
  fill_refusing_slots(qp.get());
  fill_refusing_slots(cq.get());
  fill_refusing_slots(&wq);
  fill_refusing_slots(&dm);
  struct {
    verbs_context& verbs_context_;
    ibv_context_ops& ibv_context_ops_;
    ibv_qp_ex& ibv_qp_ex_;
    ibv_cq_ex& ibv_cq_ex_;
    ibv_wq& ibv_wq_;
    ibv_dm& ibv_dm_;
  } all{context->context, context->context.context.ops, *qp, *cq, wq, dm};
  int checked = 0;
  auto check = [&](auto& object, const char* name, auto member) {
    if constexpr (requires { member(object); }) {
      EXPECT_NE(member(object), nullptr) << name;
      ++checked;
    }
  };
#define CENSUS_SLOT(id, type, member, handling, convention, man) \
  check(all.type##_, #type "." #member, [](auto& o) -> decltype(o.member) { return o.member; });
#include "slot_table.inc"
#undef CENSUS_SLOT
  EXPECT_EQ(static_cast<std::size_t>(checked), function_slots(read_text(SHADOWIB_VERBS_HEADER)).size());
}

TEST(Slots, RefuseInTheirConvention) {
  auto owner = std::make_unique<NewestVerbsContext>();
  fill_refusing_slots(owner.get());
  ibv_context* context = &owner->context.context;
  ibv_pd pd{context, 0};
  errno = 0;
  EXPECT_EQ(ibv_alloc_mw(&pd, IBV_MW_TYPE_1), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_cq_init_attr_ex cq_attr{.cqe = 1};
  errno = 0;
  EXPECT_EQ(ibv_create_cq_ex(context, &cq_attr), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(ibv_advise_mr(&pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, nullptr, 0), EOPNOTSUPP);
  ibv_srq srq{.context = context};
  ibv_recv_wr wr{}, *bad = nullptr;
  EXPECT_EQ(ibv_post_srq_recv(&srq, &wr, &bad), EOPNOTSUPP);
  EXPECT_EQ(bad, &wr);
  // A slot only newer headers know, called as such a program would: the first word of the newest layout is free_buf,
  // the third dm_export_dmabuf_fd, which answers -1.
  if (kNewerSlots == 6) {
    errno = 0;
    EXPECT_EQ(reinterpret_cast<int (*)(void*)>(owner->newer[2])(nullptr), -1);
    EXPECT_EQ(errno, EOPNOTSUPP);
    EXPECT_EQ(reinterpret_cast<int (*)(void*)>(owner->newer[4])(nullptr), EOPNOTSUPP);
  }
}

TEST(Refusal, IsCountedOncePerName) {
  unsigned before = refused_names();
  unsigned id = 0;
  EXPECT_EQ(shadowib_refuse_int(id), EOPNOTSUPP);
  unsigned after = refused_names();
  EXPECT_EQ(shadowib_refuse_minus1(id), -1);
  EXPECT_EQ(refused_names(), after);
  EXPECT_LE(after, before + 1);
  EXPECT_EQ(shadowib_refuse_rereg(id), IBV_REREG_MR_ERR_CMD);
}

unsigned id_of(std::string_view wanted) {
  struct {
    unsigned id;
    std::string_view name;
  } static constexpr kNames[] = {
#define CENSUS_NAME(id, name, man) {id, name},
#include "census_names.inc"
#undef CENSUS_NAME
  };
  for (const auto& entry : kNames)
    if (entry.name == wanted) return entry.id;
  ADD_FAILURE() << wanted << " is not in the census";
  return 0;
}

std::string told_of(const char* name) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(shadowib_refuse_int(id_of(name)), EOPNOTSUPP);
  return ::testing::internal::GetCapturedStderr();
}

TEST(Refusal, IsToldByNameUnlessEveryCallerGoesOnWithout) {
  EXPECT_NE(told_of("ibv_import_device").find("ibv_import_device is not supported under shadowib"),
            std::string::npos);
  // librdmacm, at every connection.
  EXPECT_EQ(told_of("ibv_query_ece"), "");
  EXPECT_EQ(told_of("ibv_set_ece"), "");
}

// Ours against the real library's, over the whole range of arguments.
class Stateless : public ::testing::Test {
 protected:
  void SetUp() override {
    library_ = ::dlopen(SHADOWIB_IBVERBS_FILE, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << ::dlerror();
  }
  template <class F>
  F* real(const char* name) {
    void* symbol = ::dlsym(library_, name);
    EXPECT_NE(symbol, nullptr) << name;
    return reinterpret_cast<F*>(symbol);
  }
  void* library_ = nullptr;
};

extern "C" {
const char* shadowib_ibv_node_type_str(int);
const char* shadowib_ibv_port_state_str(int);
const char* shadowib_ibv_event_type_str(int);
const char* shadowib_ibv_wc_status_str(int);
int shadowib_ibv_rate_to_mult(int);
int shadowib_mult_to_ibv_rate(int);
int shadowib_ibv_rate_to_mbps(int);
int shadowib_mbps_to_ibv_rate(int);
void shadowib_ibv_copy_path_rec_from_kern(ibv_sa_path_rec*, const ib_user_path_rec*);
void shadowib_ibv_copy_path_rec_to_kern(ib_user_path_rec*, const ibv_sa_path_rec*);
void shadowib_ibv_copy_qp_attr_from_kern(ibv_qp_attr*, const ib_uverbs_qp_attr*);
int shadowib_ibv_read_sysfs_file(const char*, const char*, char*, std::size_t);
}

TEST_F(Stateless, NamesAreTheLibrarys) {
  using Name = const char*(int);
  struct {
    const char* name;
    Name* ours;
  } kAll[] = {{"ibv_node_type_str", shadowib_ibv_node_type_str},
              {"ibv_port_state_str", shadowib_ibv_port_state_str},
              {"ibv_event_type_str", shadowib_ibv_event_type_str},
              {"ibv_wc_status_str", shadowib_ibv_wc_status_str}};
  for (auto& f : kAll)
    for (int value = -3; value < 40; ++value) EXPECT_STREQ(f.ours(value), real<Name>(f.name)(value)) << f.name;
}

TEST_F(Stateless, RatesAreTheLibrarys) {
  using Convert = int(int);
  for (int value = -3; value < 1300000; ++value) {
    ASSERT_EQ(shadowib_mbps_to_ibv_rate(value), real<Convert>("mbps_to_ibv_rate")(value)) << value;
    if (value > 1000) continue;
    ASSERT_EQ(shadowib_mult_to_ibv_rate(value), real<Convert>("mult_to_ibv_rate")(value)) << value;
    ASSERT_EQ(shadowib_ibv_rate_to_mult(value), real<Convert>("ibv_rate_to_mult")(value)) << value;
    ASSERT_EQ(shadowib_ibv_rate_to_mbps(value), real<Convert>("ibv_rate_to_mbps")(value)) << value;
  }
}

template <class T>
T patterned() {
  T object;
  auto* bytes = reinterpret_cast<unsigned char*>(&object);
  for (std::size_t i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<unsigned char>(i * 7 + 1);
  return object;
}

TEST_F(Stateless, StructsAreCopiedAsTheLibraryDoes) {
  auto kernel_path = patterned<ib_user_path_rec>();
  ibv_sa_path_rec ours{}, theirs{};
  shadowib_ibv_copy_path_rec_from_kern(&ours, &kernel_path);
  real<void(ibv_sa_path_rec*, ib_user_path_rec*)>("ibv_copy_path_rec_from_kern")(&theirs, &kernel_path);
  EXPECT_EQ(std::memcmp(&ours, &theirs, sizeof(ours)), 0);

  ib_user_path_rec our_kernel{}, their_kernel{};
  shadowib_ibv_copy_path_rec_to_kern(&our_kernel, &ours);
  real<void(ib_user_path_rec*, ibv_sa_path_rec*)>("ibv_copy_path_rec_to_kern")(&their_kernel, &ours);
  EXPECT_EQ(std::memcmp(&our_kernel, &their_kernel, sizeof(our_kernel)), 0);

  auto kernel_qp = patterned<ib_uverbs_qp_attr>();
  ibv_qp_attr our_qp{}, their_qp{};
  shadowib_ibv_copy_qp_attr_from_kern(&our_qp, &kernel_qp);
  real<void(ibv_qp_attr*, ib_uverbs_qp_attr*)>("ibv_copy_qp_attr_from_kern")(&their_qp, &kernel_qp);
  EXPECT_EQ(std::memcmp(&our_qp, &their_qp, sizeof(our_qp)), 0);
}

TEST_F(Stateless, ReadsFilesAsTheLibraryDoes) {
  using Read = int(const char*, const char*, char*, std::size_t);
  struct {
    const char *directory, *file;
    std::size_t size;
  } kAll[] = {{"/proc/sys/kernel", "ostype", 32}, {"/proc/sys/kernel", "ostype", 6},
              {"/proc/sys/kernel", "ostype", 5},  {"/proc/sys/kernel", "ostype", 3},
              {"/proc/sys/kernel", "absent", 32}, {"/proc/sys", "kernel", 32}};
  for (auto& c : kAll) {
    char ours[64] = {}, theirs[64] = {};
    EXPECT_EQ(shadowib_ibv_read_sysfs_file(c.directory, c.file, ours, c.size),
              real<Read>("ibv_read_sysfs_file")(c.directory, c.file, theirs, c.size))
        << c.file << " " << c.size;
    EXPECT_EQ(std::memcmp(ours, theirs, sizeof(ours)), 0) << c.file << " " << c.size;
  }
}

}  // namespace
}  // namespace shadowib::census
