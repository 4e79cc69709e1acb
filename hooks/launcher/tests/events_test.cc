// Events that ranks tell each other when there is no launcher: each is heard once, by all that are meant.
#include "hooks/launcher/events.h"

#include <vector>

#include "hooks/launcher/tests/launcher_fixture.h"
#include "shadowib/base/this_host.h"

namespace shadowib {
namespace {

constexpr pmix_status_t kCode = PMIX_EXTERNAL_ERR_BASE - 7, kOther = kCode - 1;

struct Heard {
  std::vector<std::string> texts;  // "<handler's name>:<status>:<source's rank>:<first info's text>"
  std::atomic<int> count{0};
  pmix_status_t answer = PMIX_EVENT_NO_ACTION_TAKEN;
  void await(int wanted) {
    for (int i = 0; i < 100000 && count.load() < wanted; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(count.load(), wanted);
  }
};

void hear(std::size_t, pmix_status_t status, const pmix_proc_t* source, pmix_info_t info[], std::size_t ninfo,
          pmix_info_t[], std::size_t, pmix_event_notification_cbfunc_fn_t finished, void* data) {
  Heard* heard = nullptr;
  std::string name, text;
  for (std::size_t i = 0; i < ninfo; ++i) {
    const std::string key = info[i].key;
    if (key == PMIX_EVENT_HDLR_NAME) name = info[i].value.data.string;
    if (key == PMIX_EVENT_RETURN_OBJECT) heard = static_cast<Heard*>(info[i].value.data.ptr);
    if (key == "text") text = info[i].value.data.string;
  }
  ASSERT_NE(heard, nullptr);
  heard->texts.push_back(name + ":" + std::to_string(status - kCode) + ":" + std::to_string(source->rank) + ":" +
                         text);
  const pmix_status_t answer = heard->answer;
  ++heard->count;
  finished(answer, nullptr, 0, nullptr, nullptr, data);
}

pmix_info_t info_of(const char* key, const char* text) {
  pmix_info_t info{};
  std::strcpy(info.key, key);
  info.value.type = PMIX_STRING;
  info.value.data.string = const_cast<char*>(text);
  return info;
}
pmix_info_t flag_of(const char* key) {
  pmix_info_t info{};
  std::strcpy(info.key, key);
  info.value.type = PMIX_BOOL;
  info.value.data.flag = true;
  return info;
}

class Events : public Launcher {
 protected:
  void TearDown() override {
    for (const std::size_t number : registered_) remove_event_handler(number);
    Launcher::TearDown();
  }
  // After a restart.
  std::size_t listen(Heard* heard, const char* name, std::vector<pmix_status_t> codes,
                     std::vector<pmix_info_t> more = {}) {
    Answers answers;
    more.push_back(info_of(PMIX_EVENT_HDLR_NAME, name));
    more.push_back({});
    std::strcpy(more.back().key, PMIX_EVENT_RETURN_OBJECT);
    more.back().value.type = PMIX_POINTER;
    more.back().value.data.ptr = heard;
    EXPECT_EQ(PMIx_Register_event_handler(codes.data(), codes.size(), more.data(), more.size(), hear,
                                          note_registration, &answers),
              PMIX_SUCCESS);
    answers.await(1);
    registered_.push_back(answers.id);
    return answers.id;
  }
  // By rank 1, whose n-th it is.
  void peer_tells(std::uint64_t n, pmix_status_t status = kCode, std::uint8_t range = PMIX_RANGE_NAMESPACE,
                  const std::string& host = this_host()) {
    LauncherEvent event{status, range, kName, 1, host, 0, ""};
    ASSERT_TRUE(Board(exchange_.get(), g_job.info.epoch, kName).publish_event({1, n}, event).ok());
  }
  std::vector<std::uint64_t> latest() {
    std::vector<std::uint64_t> numbers;
    EXPECT_TRUE(peers_board().latest_events(2, &numbers).ok());
    return numbers;
  }
  void take() { ASSERT_TRUE(take_events(exchange_.get(), g_job.info.epoch).ok()); }
  void await_library(int wanted) {
    for (int i = 0; i < 100000 && __atomic_load_n(&fake_->notified, __ATOMIC_SEQ_CST) < wanted; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(__atomic_load_n(&fake_->notified, __ATOMIC_SEQ_CST), wanted);
  }
  std::vector<std::size_t> registered_;
};

TEST_F(Events, ReachTheHandlersThatTheLibraryHasEachOnce) {
  restart();
  peer_tells(1);
  take();
  take();
  await_library(1);
  EXPECT_EQ(fake_->notified_status, kCode);
  EXPECT_EQ(fake_->notified_rank, 1u);
  peer_tells(2);
  peer_tells(3, kOther);
  take();
  await_library(3);
  EXPECT_EQ(fake_->notified_status, kOther);
}

TEST_F(Events, AreToldToOthersWithWhatComesWithThem) {
  restart();
  Heard heard;
  listen(&heard, "mine", {kCode});
  Answers answers;
  const pmix_info_t info = info_of("text", "what happened");
  ASSERT_EQ(PMIx_Notify_event(kCode, nullptr, PMIX_RANGE_GLOBAL, &info, 1, note, &answers), PMIX_SUCCESS);
  answers.await(1);
  heard.await(1);
  EXPECT_EQ(heard.texts[0], "mine:0:0:what happened");
  await_library(1);
  EXPECT_STREQ(fake_->notified_text, "what happened");
  EXPECT_EQ(fake_->calls, 0);
  EXPECT_EQ(latest(), (std::vector<std::uint64_t>{1, 0}));
  LauncherEvent event;
  bool found = false;
  ASSERT_TRUE(peers_board().find_event({0, 1}, &event, &found).ok() && found);
  EXPECT_EQ(event.status, kCode);
  EXPECT_EQ(event.ninfo, 1u);
  take();  // its own it has heard
  EXPECT_EQ(fake_->notified, 1);
}

TEST_F(Events, StayWhereTheyAreToStay) {
  restart();
  ASSERT_EQ(PMIx_Notify_event(kCode, nullptr, PMIX_RANGE_PROC_LOCAL, nullptr, 0, nullptr, nullptr), PMIX_SUCCESS);
  await_library(1);
  EXPECT_EQ(latest(), (std::vector<std::uint64_t>{0, 0}));
  peer_tells(1, kCode, PMIX_RANGE_LOCAL, "another-host");
  peer_tells(2, kOther, PMIX_RANGE_LOCAL);
  take();
  await_library(2);
  EXPECT_EQ(fake_->notified_status, kOther);
}

TEST_F(Events, WhatCannotBeToldIsRefused) {
  restart();
  pmix_info_t info{};
  info.value.type = PMIX_REGEX;
  EXPECT_EQ(PMIx_Notify_event(kCode, nullptr, PMIX_RANGE_GLOBAL, &info, 1, nullptr, nullptr),
            PMIX_ERR_UNKNOWN_DATA_TYPE);
  const pmix_info_t some = flag_of(PMIX_EVENT_AFFECTED_PROC);
  pmix_info_t copy = some;
  EXPECT_EQ(PMIx_Register_event_handler(nullptr, 0, &copy, 1, hear, note_registration, nullptr),
            PMIX_ERR_NOT_SUPPORTED);
}

TEST_F(Events, AreHeardInPmixOrderUntilOneHasDoneWithThem) {
  restart();
  Heard heard, last;
  listen(&last, "all", {});
  listen(&heard, "two", {kOther, kCode});
  listen(&heard, "one", {kCode});
  listen(&heard, "last", {kCode}, {flag_of(PMIX_EVENT_HDLR_APPEND)});
  listen(&heard, "newest", {kCode});
  listen(&heard, "once", {kOther}, {flag_of(PMIX_EVENT_ONESHOT)});
  peer_tells(1);
  take();
  last.await(1);
  EXPECT_EQ(heard.texts, (std::vector<std::string>{"newest:0:1:", "one:0:1:", "last:0:1:", "two:0:1:"}));
  heard.answer = PMIX_EVENT_ACTION_COMPLETE;
  peer_tells(2, kOther);  // "once" has done with it
  take();
  heard.await(5);
  peer_tells(3, kOther);
  take();
  heard.await(6);
  peer_tells(4, kOther - 1);
  take();
  last.await(2);
  EXPECT_EQ(heard.texts[4], "once:-1:1:");
  EXPECT_EQ(heard.texts[5], "two:-1:1:");
  EXPECT_EQ(last.texts.back(), "all:-2:1:");
}

TEST_F(Events, AreNotHeardByAHandlerThatIsGone) {
  restart();
  Heard gone, there;
  const std::size_t number = listen(&gone, "gone", {kCode});
  listen(&there, "there", {kCode});
  Answers answers;
  ASSERT_EQ(PMIx_Deregister_event_handler(number, note, &answers), PMIX_SUCCESS);
  answers.await(1);
  peer_tells(1);
  take();
  there.await(1);
  EXPECT_EQ(gone.count, 0);
  ASSERT_EQ(PMIx_Deregister_event_handler(5, note, &answers), PMIX_SUCCESS);  // one of before
  answers.await(2);
  EXPECT_EQ(fake_->deregistered, 6);
}

// A restart has another epoch, in which there are none.
TEST_F(Events, AreTakenInByACheckpoint) {
  restart();
  Heard heard;
  listen(&heard, "mine", {kCode});
  peer_tells(1);
  ASSERT_TRUE(exchange_->publish("p/ranks/" + Board::namespace_key(kName) + "/1", "").ok());
  ASSERT_TRUE(launcher_announce(exchange_.get(), "p").ok());
  ASSERT_TRUE(launcher_judge(exchange_.get(), kAfter, "p").ok());
  std::strcpy(g_job.info.epoch, "g2-c");
  ASSERT_TRUE(launcher_is_gone(exchange_.get(), "g2-c", kMember).ok());
  heard.await(1);
  peer_tells(2);  // its numbers go on
  take();
  heard.await(2);
}

TEST_F(Events, OfTheLatestAreKept) {
  restart();
  for (std::uint64_t n = 1; n <= Board::kEventsKept + 2; ++n) peer_tells(n);
  LauncherEvent event;
  bool found = true;
  ASSERT_TRUE(peers_board().find_event({1, 2}, &event, &found).ok());
  EXPECT_FALSE(found);
  ASSERT_TRUE(peers_board().find_event({1, 3}, &event, &found).ok());
  EXPECT_TRUE(found);
  take();
  await_library(static_cast<int>(Board::kEventsKept));
}

// Or one that comes late would be taken for one that has been heard of.
TEST_F(Events, OfTwoThreadsAreAllHeard) {
  restart();
  constexpr int kEach = 100;
  const auto tell = [] {
    for (int i = 0; i < kEach; ++i)
      EXPECT_EQ(PMIx_Notify_event(kCode, nullptr, PMIX_RANGE_GLOBAL, nullptr, 0, nullptr, nullptr), PMIX_SUCCESS);
  };
  std::thread one(tell), two(tell);
  // What another rank finds there, whenever it looks: no number without those before it.
  for (std::uint64_t newest = 0; newest < 2 * kEach;) {
    newest = latest()[0];
    LauncherEvent event;
    bool found = true;
    for (std::uint64_t n = 1; n <= newest; ++n) {
      ASSERT_TRUE(peers_board().find_event({0, n}, &event, &found).ok());
      EXPECT_TRUE(found) << n << " of " << newest;
    }
  }
  one.join();
  two.join();
  await_library(2 * kEach);
}

TEST_F(Events, AHandlerThatIsAskedForAtOnceHasANumberOfItsOwn) {
  restart();
  Heard heard;
  pmix_status_t code = kCode;
  pmix_info_t object{};
  std::strcpy(object.key, PMIX_EVENT_RETURN_OBJECT);
  object.value.type = PMIX_POINTER;
  object.value.data.ptr = &heard;
  const int number = PMIx_Register_event_handler(&code, 1, &object, 1, hear, nullptr, nullptr);
  ASSERT_TRUE(is_own_handler(static_cast<std::size_t>(number)));
  peer_tells(1);
  take();
  heard.await(1);
  ASSERT_EQ(PMIx_Deregister_event_handler(static_cast<std::size_t>(number), nullptr, nullptr), PMIX_SUCCESS);
  peer_tells(2);
  take();
  await_library(2);
  EXPECT_EQ(heard.count, 1);
  EXPECT_EQ(fake_->deregistered, 0);
}

TEST_F(Events, AreNotHeardByWhoHasTakenLeave) {
  restart();
  Heard heard;
  listen(&heard, "mine", {kCode});
  ASSERT_EQ(PMIx_Finalize(nullptr, 0), PMIX_SUCCESS);
  peer_tells(1);
  take();
  pmix_proc_t own{};
  ASSERT_EQ(PMIx_Init(&own, nullptr, 0), PMIX_SUCCESS);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(heard.count, 0);
}

// The library has it on its list by a number that the program has not heard of.
TEST_F(Events, AHandlerThatIsBeingRegisteredIsWaitedFor) {
  Answers answers;
  ASSERT_EQ(PMIx_Register_event_handler(nullptr, 0, nullptr, 0, hear, note_registration, &answers), PMIX_SUCCESS);
  ASSERT_TRUE(exchange_->publish("p/ranks/" + Board::namespace_key(kName) + "/1", "").ok());
  ASSERT_TRUE(launcher_announce(exchange_.get(), "p").ok());
  const Status refused = launcher_judge(exchange_.get(), kBefore, "p");
  EXPECT_EQ(refused.code(), Code::kRefused);
  EXPECT_EQ(refused.error(), EAGAIN);
  fake_->registration(PMIX_SUCCESS, 5, fake_->registration_data);
  EXPECT_EQ(answers.id, 5u);
  EXPECT_TRUE(launcher_judge(exchange_.get(), kBefore, "p").ok());
}

TEST_F(Events, MalformedOnesArePassedOver) {
  restart();
  peer_tells(1);
  ASSERT_TRUE(
      exchange_->publish(std::string(kAfter) + "/launcher/" + Board::namespace_key(kName) + "/event/1.1", "?").ok());
  peer_tells(2);
  take();
  await_library(1);
}

}  // namespace
}  // namespace shadowib
