// A rank over a libpmix that answers when it is told to (fake_pmix.h), before and after its launcher is gone.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "hooks/agent/agent_state.h"
#include "hooks/job/protocol.h"
#include "hooks/launcher/board.h"
#include "hooks/launcher/launcher.h"
#include "hooks/launcher/meeting.h"
#include "hooks/launcher/rank.h"
#include "hooks/launcher/tests/fake_pmix.h"

namespace shadowib {

inline constexpr char kName[] = "job.1", kBefore[] = "g0-a", kAfter[] = "g1-b";
inline constexpr std::uint32_t kMember = 5;  // of rank 0

struct Answers {
  std::atomic<int> count{0}, status{1};
  std::atomic<std::size_t> id{0};
  void await(int wanted) {
    for (int i = 0; i < 5000 && count.load() < wanted; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(count.load(), wanted);
  }
};
inline void note(pmix_status_t status, void* answers) {
  static_cast<Answers*>(answers)->status = status;
  ++static_cast<Answers*>(answers)->count;
}
inline void note_registration(pmix_status_t status, std::size_t id, void* answers) {
  static_cast<Answers*>(answers)->id = id;
  note(status, answers);
}
inline void note_control(pmix_status_t status, pmix_info_t*, std::size_t, void* answers, pmix_release_cbfunc_t,
                         void*) {
  note(status, answers);
}
inline void note_lookup(pmix_status_t status, pmix_pdata_t*, std::size_t, void* answers) { note(status, answers); }

class Launcher : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    void* const handle = ::dlopen(FAKE_PMIX, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle, nullptr) << ::dlerror();
    fake_ = reinterpret_cast<FakePmix* (*)()>(::dlsym(handle, "fake_pmix"))();
    g_agent.participant = nullptr;
  }
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / ("shadowib-launcher-" + std::to_string(::getpid()));
    std::filesystem::remove_all(directory_);
    ASSERT_TRUE(Exchange::open("dir:" + directory_, true, &exchange_).ok());
    g_job.exchange = exchange_.get();
    std::strcpy(g_job.info.epoch, kBefore);
    *fake_ = {};
    std::strcpy(fake_->session, session().c_str());
    std::filesystem::create_directories(session() + "/1/0");
    LauncherRank& r = launcher_rank();
    r.gone = false;
    forget_meetings();
    r.inits = 0;
    r.puts.clear();
    r.committed_puts.clear();
    r.committed = false;
    r.fences.clear();
    r.done.clear();
    r.unanswerable[0] = '\0';
    r.events_told = 0;
    r.events_seen.clear();
    r.events_mark.clear();
    pmix_proc_t own{};
    ASSERT_EQ(PMIx_Init(&own, nullptr, 0), PMIX_SUCCESS);
    ASSERT_STREQ(own.nspace, kName);
    ASSERT_EQ(r.size, 2u);
  }
  void TearDown() override {
    PMIx_Finalize(nullptr, 0);
    std::filesystem::remove_all(directory_);
    std::filesystem::remove_all(directory_ + "-session");
  }
  void restart() {
    ASSERT_TRUE(launcher_announce(exchange_.get(), "checkpoint").ok());
    std::filesystem::remove_all(directory_ + "-session");
    restart_where_they_are();
  }
  void restart_where_they_are() {
    std::strcpy(g_job.info.epoch, kAfter);
    ASSERT_TRUE(launcher_is_gone(exchange_.get(), kAfter, kMember).ok());
  }
  // The launcher's, within one that it has made, too.
  std::string session() const { return directory_ + "-session/pid.7"; }
  Board peers_board() { return {exchange_.get(), kAfter, kName}; }
  static pmix_proc_t peer() {
    pmix_proc_t proc{};
    std::strcpy(proc.nspace, kName);
    proc.rank = 1;
    return proc;
  }

  static inline FakePmix* fake_ = nullptr;
  std::string directory_;
  std::unique_ptr<Exchange> exchange_;
};

}  // namespace shadowib
