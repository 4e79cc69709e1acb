// A rank's calls before and after the launcher is gone, over a library that answers when it is told to (fake_pmix.h).
#include "hooks/launcher/launcher.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "hooks/launcher/requests.h"
#include "hooks/launcher/tests/launcher_fixture.h"

namespace shadowib {
namespace {

TEST_F(Launcher, PassesFencesOnWhileItIsThere) {
  Answers answers;
  ASSERT_EQ(PMIx_Fence_nb(nullptr, 0, nullptr, 0, note, &answers), PMIX_SUCCESS);
  EXPECT_EQ(answers.count, 0);
  fake_->fence(PMIX_SUCCESS, fake_->fence_data);
  EXPECT_EQ(answers.count, 1);
  EXPECT_EQ(answers.status, PMIX_SUCCESS);
}

// The other had heard of its end before, or not: it has come to one fence in its life in either case.
TEST_F(Launcher, EndsAFenceThatARestartFoundHalfDone) {
  Answers answers;
  ASSERT_EQ(PMIx_Fence_nb(nullptr, 0, nullptr, 0, note, &answers), PMIX_SUCCESS);
  restart();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(answers.count, 0);
  ASSERT_TRUE(peers_board().publish_fence("all", 1, 1).ok());
  answers.await(1);
  EXPECT_EQ(answers.status, PMIX_SUCCESS);
  // The library's thread was about to pass the answer on when it was stopped.
  fake_->fence(PMIX_SUCCESS, fake_->fence_data);
  EXPECT_EQ(answers.count, 1);
}

TEST_F(Launcher, FencesAfterARestartWaitForAllThatHaveNotLeft) {
  restart();
  std::atomic<bool> over{false};
  std::thread waiter([&] {
    EXPECT_EQ(PMIx_Fence(nullptr, 0, nullptr, 0), PMIX_SUCCESS);
    over = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(over);
  ASSERT_TRUE(peers_board().publish_done(1).ok());
  waiter.join();
  std::vector<std::uint32_t> missing = {0};
  ASSERT_TRUE(peers_board().look_for("all", 1, &missing).ok());
  EXPECT_TRUE(missing.empty());
  EXPECT_EQ(fake_->calls, 0);
}

TEST_F(Launcher, TellsWhatAPeerHasPut) {
  restart();
  const pmix_proc_t proc = peer();
  pmix_value_t* value = nullptr;
  std::thread waiter([&] { EXPECT_EQ(PMIx_Get(&proc, "its.key", nullptr, 0, &value), PMIX_SUCCESS); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it waits for the commit
  ASSERT_TRUE(peers_board().publish_puts(1, {{"its.key", {PMIX_STRING, "its value"}}}).ok());
  waiter.join();
  ASSERT_NE(value, nullptr);
  EXPECT_STREQ(value->data.string, "its value");
  std::free(value->data.string);
  std::free(value);
  EXPECT_EQ(PMIx_Get(&proc, "another", nullptr, 0, &value), PMIX_ERR_NOT_FOUND);
}

TEST_F(Launcher, TellsPeersWhatWasCommitted) {
  pmix_value_t value{};
  value.type = PMIX_UINT32;
  value.data.uint32 = 77;
  ASSERT_EQ(PMIx_Put(PMIX_GLOBAL, "key", &value), PMIX_SUCCESS);
  ASSERT_EQ(PMIx_Commit(), PMIX_SUCCESS);
  ASSERT_EQ(PMIx_Put(PMIX_GLOBAL, "later", &value), PMIX_SUCCESS);
  restart();
  Board::Answer answer{};
  StoredValue stored;
  ASSERT_TRUE(peers_board().find_put(0, "key", &answer, &stored).ok());
  ASSERT_EQ(answer, Board::Answer::kFound);
  std::uint32_t number = 0;
  std::memcpy(&number, stored.bytes.data(), sizeof(number));
  EXPECT_EQ(number, 77u);
  ASSERT_TRUE(peers_board().find_put(0, "later", &answer, &stored).ok());
  EXPECT_EQ(answer, Board::Answer::kNotPut) << "it was put, and not committed";
  ASSERT_EQ(PMIx_Commit(), PMIX_SUCCESS);
  ASSERT_TRUE(peers_board().find_put(0, "later", &answer, &stored).ok());
  EXPECT_EQ(answer, Board::Answer::kFound);
}

// A cluster that goes back twice in an epoch: what its ranks told in the life between is undone.
TEST_F(Launcher, ForgetsWhatItToldInALifeThatIsUndone) {
  restart();
  Board board = peers_board();
  const StoredValues puts{{"key", {PMIX_STRING, "value"}}};
  const LauncherEvent event{-1, 0, kName, 0, "host", 0, ""};
  ASSERT_TRUE(board.publish_puts(0, puts).ok() && board.publish_puts(1, puts).ok());
  ASSERT_TRUE(board.publish_fence("all", 0, 3).ok() && board.publish_fence("all", 1, 3).ok());
  ASSERT_TRUE(board.publish_done(0).ok() && board.publish_done(1).ok());
  for (std::uint64_t n = 1; n <= 3; ++n) ASSERT_TRUE(board.publish_event({0, n}, event).ok());
  ASSERT_TRUE(exchange_->publish(abort_key(kAfter), encode_abort(kName, {1, 3, "no way on", {}})).ok());
  launcher_rank().events_told = 1;  // as its image has it
  ASSERT_TRUE(launcher_is_gone(exchange_.get(), kAfter, kMember, true).ok());
  Board::Answer answer{};
  StoredValue value;
  ASSERT_TRUE(board.find_put(0, "key", &answer, &value).ok());
  EXPECT_EQ(answer, Board::Answer::kNotCommitted);
  ASSERT_TRUE(board.find_put(1, "key", &answer, &value).ok());
  EXPECT_EQ(answer, Board::Answer::kFound) << "the other rank removes its own";
  std::vector<std::uint32_t> missing{0}, done;
  ASSERT_TRUE(board.look_for("all", 1, &missing).ok());
  EXPECT_EQ(missing, std::vector<std::uint32_t>{0});
  ASSERT_TRUE(board.list_done(&done).ok());
  EXPECT_EQ(done, std::vector<std::uint32_t>{1});
  std::vector<std::uint64_t> latest;
  ASSERT_TRUE(board.latest_events(2, &latest).ok());
  EXPECT_EQ(latest, (std::vector<std::uint64_t>{1, 0}));
  LauncherEvent told;
  bool found = true;
  ASSERT_TRUE(board.find_event({0, 2}, &told, &found).ok());
  EXPECT_FALSE(found);
  std::string text;
  ASSERT_TRUE(exchange_->get(abort_key(kAfter), &text, &found).ok());
  EXPECT_FALSE(found);
}

TEST_F(Launcher, AnswersWhatWasAskedBeforeARestart) {
  Answers registered, controlled, got;
  ASSERT_EQ(PMIx_Register_event_handler(nullptr, 0, nullptr, 0, nullptr, note_registration, &registered),
            PMIX_SUCCESS);
  ASSERT_EQ(PMIx_Job_control_nb(nullptr, 0, nullptr, 0, note_control, &controlled), PMIX_SUCCESS);
  restart();
  registered.await(1);
  controlled.await(1);
  ASSERT_EQ(PMIx_Deregister_event_handler(registered.id, note, &got), PMIX_SUCCESS);
  got.await(1);
  fake_->registration(PMIX_SUCCESS, 5, fake_->registration_data);
  fake_->control(PMIX_SUCCESS, nullptr, 0, fake_->control_data, nullptr, nullptr);
  EXPECT_EQ(registered.count, 1);
  EXPECT_EQ(controlled.count, 1);
}

TEST_F(Launcher, RefusesWhileAnAnswerIsDueThatOnlyItCanGive) {
  Answers answers;
  ASSERT_TRUE(exchange_->publish(std::string("p/ranks/") + Board::namespace_key(kName) + "/1", "").ok());
  ASSERT_TRUE(launcher_announce(exchange_.get(), "p").ok());
  ASSERT_EQ(PMIx_Lookup_nb(nullptr, nullptr, 0, note_lookup, &answers), PMIX_SUCCESS);
  const Status refused = launcher_judge(exchange_.get(), kBefore, "p");
  EXPECT_EQ(refused.code(), Code::kRefused);
  EXPECT_NE(std::strstr(refused.text(), "PMIx_Lookup_nb"), nullptr) << refused.text();
  fake_->lookup(PMIX_SUCCESS, nullptr, 0, fake_->lookup_data);
  EXPECT_EQ(answers.count, 1);
  EXPECT_TRUE(launcher_judge(exchange_.get(), kBefore, "p").ok());
  restart();
  EXPECT_EQ(PMIx_Lookup_nb(nullptr, nullptr, 0, note_lookup, &answers), PMIX_ERR_NOT_SUPPORTED);
}

// Sets a variable of this process for the life of an object.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

pmix_app_t app_with(const char* variable) {
  pmix_app_t app{};
  app.env = static_cast<char**>(std::calloc(2, sizeof(char*)));
  app.env[0] = ::strdup(variable);
  return app;
}

bool was_spawned_with(const FakePmix& fake, const std::string& variable) {
  return ("\n" + std::string(fake.spawned_environment)).find("\n" + variable + "\n") != std::string::npos;
}

TEST_F(Launcher, SpawnedRanksComeIntoTheJob) {
  const Variable job("SHADOWIB_JOB", "demo"), directory("SHADOWIB_DIR", "/d"), preload("LD_LIBRARY_PATH", "/ours");
  pmix_app_t app = app_with("SHADOWIB_DIR=/its/own");
  ASSERT_EQ(PMIx_Spawn(nullptr, 0, &app, 1, nullptr), PMIX_SUCCESS);
  EXPECT_TRUE(was_spawned_with(*fake_, "SHADOWIB_JOB=demo")) << fake_->spawned_environment;
  EXPECT_TRUE(was_spawned_with(*fake_, "LD_LIBRARY_PATH=/ours"));
  EXPECT_TRUE(was_spawned_with(*fake_, "SHADOWIB_DIR=/its/own")) << "the app's own is kept";
  EXPECT_FALSE(was_spawned_with(*fake_, "SHADOWIB_DIR=/d"));
  EXPECT_EQ(std::string(fake_->spawned_environment).find("HOME="), std::string::npos);
  EXPECT_STREQ(app.env[0], "SHADOWIB_DIR=/its/own") << "the caller's array is as it was";
  EXPECT_EQ(app.env[1], nullptr);
  std::free(app.env[0]);
  std::free(app.env);
}

TEST_F(Launcher, SpawningWithoutAJobPassesTheCallOn) {
  pmix_app_t app = app_with("A=1");
  ASSERT_EQ(PMIx_Spawn(nullptr, 0, &app, 1, nullptr), PMIX_SUCCESS);
  EXPECT_STREQ(fake_->spawned_environment, "A=1\n");
  EXPECT_STREQ(app.env[1], "ADDED=1") << "the library had the caller's own array";
  std::free(app.env[0]);
  std::free(app.env[1]);
  std::free(app.env);
}

TEST_F(Launcher, SpawningIsAnsweredLater) {
  const Variable job("SHADOWIB_JOB", "demo");
  Answers answers;
  pmix_app_t app{};
  const auto note_spawn = [](pmix_status_t status, char*, void* data) { note(status, data); };
  ASSERT_EQ(PMIx_Spawn_nb(nullptr, 0, &app, 1, note_spawn, &answers), PMIX_SUCCESS);
  EXPECT_TRUE(was_spawned_with(*fake_, "SHADOWIB_JOB=demo"));
  char name[] = "job.2";
  fake_->spawn(PMIX_SUCCESS, name, fake_->spawn_data);
  EXPECT_EQ(answers.count, 1);
}

// Refused at this moment, and the calls are let in again.
bool is_refused() {
  const Status status = launcher_hold_calls(5000);
  if (status.ok()) launcher_release_calls();
  EXPECT_TRUE(status.ok() || std::strstr(status.text(), "MPI_Comm_spawn") != nullptr) << status.text();
  EXPECT_EQ(status.error(), status.ok() ? 0 : EAGAIN) << "it passes";
  return !status.ok();
}

pmix_info_t told(const char* key) {
  pmix_info_t info{};
  std::strcpy(info.key, key);
  return info;
}

TEST_F(Launcher, RefusesFromSpawningToConnecting) {
  pmix_app_t stranger = app_with("OMPI_PARENT_PORTS=1"), child = app_with("OMPI_PARENT_PORT=1.0:7");
  ASSERT_EQ(PMIx_Spawn(nullptr, 0, &stranger, 1, nullptr), PMIX_SUCCESS);
  EXPECT_FALSE(is_refused()) << "no program of Open MPI's";
  ASSERT_EQ(PMIx_Spawn(nullptr, 0, &child, 1, nullptr), PMIX_SUCCESS);
  EXPECT_TRUE(is_refused());
  ASSERT_EQ(PMIx_Connect(nullptr, 0, nullptr, 0), PMIX_SUCCESS);
  EXPECT_FALSE(is_refused());
  Answers answers;
  const auto note_spawn = [](pmix_status_t status, char*, void* data) { note(status, data); };
  ASSERT_EQ(PMIx_Spawn_nb(nullptr, 0, &child, 1, note_spawn, &answers), PMIX_SUCCESS);
  EXPECT_FALSE(is_refused()) << "that an answer is due is judged elsewhere";
  char name[] = "job.2";
  fake_->spawn(PMIX_SUCCESS, name, fake_->spawn_data);
  EXPECT_TRUE(is_refused());
  ASSERT_TRUE(exchange_->publish(std::string("p/ranks/") + Board::namespace_key(kName) + "/1", "").ok());
  ASSERT_TRUE(launcher_announce(exchange_.get(), "p").ok());
  EXPECT_EQ(launcher_judge(exchange_.get(), kBefore, "p").error(), EAGAIN) << "the answer may come this late";
  ASSERT_EQ(PMIx_Connect_nb(nullptr, 0, nullptr, 0, note, &answers), PMIX_SUCCESS);
  EXPECT_TRUE(is_refused());
  fake_->connect(PMIX_SUCCESS, fake_->connect_data);
  EXPECT_EQ(answers.count, 2);
  EXPECT_FALSE(is_refused());
  EXPECT_TRUE(launcher_judge(exchange_.get(), kBefore, "p").ok());
}

pmix_status_t look_up(const char* key) {
  pmix_pdata_t data{};
  std::strcpy(data.key, key);
  return PMIx_Lookup(&data, 1, nullptr, 0);
}

// The two roots agree on numbers once all are connected.
TEST_F(Launcher, RefusesARootFromTellingWhoItIsToTheLastItIsTold) {
  const pmix_info_t service = told("a service"), accept = told("1.0:7:accept");
  ASSERT_EQ(PMIx_Publish(&service, 1), PMIX_SUCCESS);
  EXPECT_FALSE(is_refused());
  ASSERT_EQ(PMIx_Publish(&accept, 1), PMIX_SUCCESS);
  EXPECT_TRUE(is_refused());
  ASSERT_EQ(look_up("1.0:7:connect"), PMIX_SUCCESS);
  EXPECT_TRUE(is_refused());
  ASSERT_EQ(PMIx_Connect(nullptr, 0, nullptr, 0), PMIX_SUCCESS);
  EXPECT_TRUE(is_refused());
  ASSERT_EQ(look_up("1.0:7:nextcid:recv:0"), PMIX_SUCCESS);
  ASSERT_EQ(look_up("1.0:77:activate:recv:0"), PMIX_SUCCESS);
  EXPECT_TRUE(is_refused()) << "another port's";
  ASSERT_EQ(look_up("1.0:7:activate:recv:0"), PMIX_SUCCESS);
  EXPECT_FALSE(is_refused());
}

TEST_F(Launcher, AMeetingThatFailsIsOver) {
  const pmix_info_t connect = told("1.0:7:connect"), other = told("1.0:8:accept");
  fake_->looked_up = PMIX_ERR_TIMEOUT;
  ASSERT_EQ(PMIx_Publish(&connect, 1), PMIX_SUCCESS);
  ASSERT_EQ(PMIx_Publish(&other, 1), PMIX_SUCCESS);
  EXPECT_EQ(look_up("a service"), PMIX_ERR_TIMEOUT);
  EXPECT_EQ(look_up("1.0:7:accept"), PMIX_ERR_TIMEOUT);
  EXPECT_TRUE(is_refused()) << "the other one goes on";
  char key[] = "1.0:8:accept";
  char* keys[] = {key, nullptr};
  EXPECT_EQ(PMIx_Unpublish(keys, nullptr, 0), PMIX_SUCCESS);
  EXPECT_FALSE(is_refused());
}

TEST_F(Launcher, ASpawnedRankIsRefusedUntilItConnects) {
  ASSERT_EQ(PMIx_Finalize(nullptr, 0), PMIX_SUCCESS);
  const Variable parent("OMPI_PARENT_PORT", "1.0:7");
  ASSERT_EQ(PMIx_Init(nullptr, nullptr, 0), PMIX_SUCCESS);
  EXPECT_TRUE(is_refused());
  ASSERT_EQ(PMIx_Connect(nullptr, 0, nullptr, 0), PMIX_SUCCESS);
  EXPECT_FALSE(is_refused());
  ASSERT_EQ(PMIx_Finalize(nullptr, 0), PMIX_SUCCESS);
  ASSERT_EQ(PMIx_Init(nullptr, nullptr, 0), PMIX_SUCCESS);
  EXPECT_FALSE(is_refused()) << "nobody awaits it a second time";
}

TEST_F(Launcher, FencesWithSpawnedRanksAfterARestart) {
  // Rank 0 of ours and ranks 0 and 1 that it has spawned; each names them in an order of its own.
  pmix_proc_t procs[3]{};
  std::strcpy(procs[0].nspace, "job.2");
  procs[0].rank = 1;
  std::strcpy(procs[1].nspace, kName);
  std::strcpy(procs[2].nspace, "job.2");
  RanksByNamespace ranks{{"job.2", {0, 1}}, {kName, {0}}};
  const std::string set = fence_set(&ranks);
  Answers answers;
  ASSERT_EQ(PMIx_Fence_nb(procs, 3, nullptr, 0, note, &answers), PMIX_SUCCESS);
  fake_->fence(PMIX_SUCCESS, fake_->fence_data);
  ASSERT_EQ(PMIx_Fence_nb(procs, 3, nullptr, 0, note, &answers), PMIX_SUCCESS);
  restart();
  Board other(exchange_.get(), kAfter, "job.2");
  ASSERT_TRUE(other.publish_fence(set, 0, 2).ok());
  ASSERT_TRUE(other.publish_fence(set, 1, 1).ok());
  EXPECT_EQ(answers.count, 1) << "rank 1 has come to the first only";
  ASSERT_TRUE(other.publish_fence(set, 1, 2).ok());
  answers.await(2);
  EXPECT_EQ(answers.status, PMIX_SUCCESS);
  procs[0].rank = PMIX_RANK_WILDCARD;
  EXPECT_EQ(PMIx_Fence_nb(procs, 3, nullptr, 0, note, &answers), PMIX_ERR_NOT_SUPPORTED);
}

TEST_F(Launcher, RanksTakeLeaveOfEachOtherWithoutIt) {
  Answers before, after;
  const pmix_proc_t other = peer();
  ASSERT_EQ(PMIx_Disconnect_nb(&other, 1, nullptr, 0, note, &before), PMIX_SUCCESS);
  EXPECT_EQ(before.count, 0) << "the launcher has not answered";
  restart();
  before.await(1);
  EXPECT_EQ(before.status, PMIX_SUCCESS);
  EXPECT_EQ(PMIx_Disconnect(&other, 1, nullptr, 0), PMIX_SUCCESS);
  ASSERT_EQ(PMIx_Disconnect_nb(&other, 1, nullptr, 0, note, &after), PMIX_SUCCESS);
  after.await(1);
  EXPECT_EQ(after.status, PMIX_SUCCESS);
  EXPECT_EQ(fake_->calls, 1);
}

TEST_F(Launcher, RefusesAPartOfItsRanks) {
  ASSERT_TRUE(launcher_announce(exchange_.get(), "p").ok());
  const Status refused = launcher_judge(exchange_.get(), kBefore, "p");
  EXPECT_EQ(refused.code(), Code::kRefused);
  EXPECT_NE(std::strstr(refused.text(), "1 of the 2 ranks"), nullptr) << refused.text();
  ASSERT_TRUE(Board(exchange_.get(), kBefore, kName).publish_done(1).ok());
  EXPECT_TRUE(launcher_judge(exchange_.get(), kBefore, "p").ok());
}

TEST_F(Launcher, RefusesWhatItCouldNotTellAgain) {
  pmix_value_t value{};
  value.type = PMIX_DATA_ARRAY;
  ASSERT_EQ(PMIx_Put(PMIX_GLOBAL, "array", &value), PMIX_SUCCESS);
  const Status refused = launcher_judge(exchange_.get(), kBefore, "p");
  EXPECT_EQ(refused.code(), Code::kRefused);
  EXPECT_NE(std::strstr(refused.text(), "'array'"), nullptr) << refused.text();
}

TEST_F(Launcher, HoldsCallsUntilTheyAreLetGo) {
  __atomic_store_n(&fake_->commit_waits, 1, __ATOMIC_SEQ_CST);
  std::thread inside([] { EXPECT_EQ(PMIx_Commit(), PMIX_SUCCESS); });
  while (__atomic_load_n(&fake_->commits_entered, __ATOMIC_SEQ_CST) == 0) std::this_thread::yield();
  const Status refused = launcher_hold_calls(50);
  EXPECT_EQ(refused.code(), Code::kRefused);
  EXPECT_NE(std::strstr(refused.text(), "PMIx_Commit"), nullptr) << refused.text();
  __atomic_store_n(&fake_->commit_waits, 0, __ATOMIC_SEQ_CST);
  ASSERT_TRUE(launcher_hold_calls(5000).ok());
  inside.join();
  std::atomic<bool> over{false};
  std::thread before([&] {
    EXPECT_EQ(PMIx_Commit(), PMIX_SUCCESS);
    over = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(over);
  EXPECT_EQ(fake_->calls, 1);
  launcher_release_calls();
  before.join();
}

// A window in shared memory, say, has its file there.
TEST_F(Launcher, GivesTheSessionItsDirectoriesAgain) {
  restart();
  struct stat made {};
  ASSERT_EQ(::stat((session() + "/1/0").c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 0777, 0700u);
  ASSERT_EQ(PMIx_Finalize(nullptr, 0), PMIX_SUCCESS);
  EXPECT_FALSE(std::filesystem::exists(directory_ + "-session"));
}

TEST_F(Launcher, TakesNoDirectoryThatIsNotItsOwn) {
  std::filesystem::create_directories(directory_ + "-session/of the user");
  restart();
  EXPECT_TRUE(std::filesystem::exists(session()));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "-session/of the user"));
}

TEST_F(Launcher, LeavesDirectoriesThatAreThereOrInUse) {
  ASSERT_TRUE(launcher_announce(exchange_.get(), "checkpoint").ok());
  std::filesystem::remove_all(session() + "/1");
  restart_where_they_are();
  std::ofstream(session() + "/1/segment") << "another rank's";
  ASSERT_EQ(PMIx_Finalize(nullptr, 0), PMIX_SUCCESS);
  EXPECT_TRUE(std::filesystem::exists(session() + "/1/segment"));
  EXPECT_FALSE(std::filesystem::exists(session() + "/1/0"));
}

TEST_F(Launcher, AbortIsToldToAll) {
  restart();
  ASSERT_EQ(PMIx_Abort(3, "no way on", nullptr, 0), PMIX_SUCCESS);
  EXPECT_EQ(fake_->calls, 0);
  std::string text, name;
  bool found = false;
  ASSERT_TRUE(exchange_->get(abort_key(kAfter), &text, &found).ok() && found);
  AbortRequest request;
  ASSERT_TRUE(decode_abort(text, &name, &request));
  EXPECT_EQ(name, kName);
  EXPECT_EQ(request.status, 3);
  EXPECT_EQ(request.message, "no way on");
  EXPECT_TRUE(request.ranks.empty());
  end_with_the_job(exchange_.get(), kAfter);  // who has asked ends by itself
}

TEST_F(Launcher, AbortOfAnotherEndsThoseMeant) {
  const std::string others = encode_abort(kName, {1, 3, "no way on", {1}}), all = encode_abort(kName, {1, 3, "", {}});
  ASSERT_TRUE(exchange_->publish(abort_key(kAfter), all).ok());
  end_with_the_job(exchange_.get(), kAfter);  // the launcher's affair, while there is one
  restart();
  EXPECT_EXIT(end_with_the_job(exchange_.get(), kAfter), testing::KilledBySignal(SIGTERM), "rank 1 has aborted");
  ASSERT_TRUE(exchange_->publish(abort_key(kAfter), others).ok());
  end_with_the_job(exchange_.get(), kAfter);
  ASSERT_TRUE(exchange_->publish(abort_key(kAfter), encode_abort("job.2", {1, 3, "", {}})).ok());
  end_with_the_job(exchange_.get(), kAfter);
}

// Passes lookups on, and has a rank abort the job and end right after the first.
class AbortsBetween final : public Exchange {
 public:
  explicit AbortsBetween(Exchange* real) : real_(real) {}
  const std::string& uri() const override { return real_->uri(); }

 private:
  Status do_lookup(const std::vector<std::string>& keys, std::vector<std::string>* values,
                   std::vector<bool>* found) override {
    const Status status = real_->lookup(keys, values, found);
    if (!std::exchange(aborted_, true)) {
      EXPECT_TRUE(real_->publish(abort_key(kAfter), encode_abort(kName, {1, 3, "no way on", {}})).ok());
      EXPECT_TRUE(real_->publish(death_key(kAfter), encode_fields({{"member", "7"}, {"how", "exit status 3"}})).ok());
    }
    return status;
  }
  static Status unexpected() { return Status::of(Code::kInternal, 0, "only lookups are expected"); }
  Status do_publish(std::string_view, std::string_view) override { return unexpected(); }
  Status do_claim(std::string_view, std::string_view) override { return unexpected(); }
  Status do_remove(std::string_view) override { return unexpected(); }
  Status do_list(std::string_view, std::vector<std::string>*) override { return unexpected(); }
  Status do_barrier(std::string_view, std::string_view, int, int, std::string_view) override { return unexpected(); }
  Status do_entered(std::string_view, std::vector<std::string>*) override { return unexpected(); }
  Status do_watch(std::string_view, std::uint64_t*, int, int) override { return unexpected(); }

  Exchange* const real_;
  bool aborted_ = false;
};

TEST_F(Launcher, AnAbortIsTheReasonHoweverSoonItsRankEnds) {
  restart();
  ASSERT_TRUE(peers_board().publish_member(7, 1).ok());
  AbortsBetween exchange(exchange_.get());
  EXPECT_EXIT(
      {
        for (int i = 0; i < 2; ++i) end_with_the_job(&exchange, kAfter);
      },
      testing::KilledBySignal(SIGTERM), "rank 1 has aborted the job with status 3: no way on");
}

TEST_F(Launcher, DeathOfAnotherRankIsTheEnd) {
  restart();
  ASSERT_TRUE(peers_board().publish_member(7, 1).ok());
  const auto died = [&](const char* member) {
    ASSERT_TRUE(
        exchange_->publish(death_key(kAfter), encode_fields({{"member", member}, {"how", "signal 11"}})).ok());
  };
  died("8");  // a member that is no rank
  end_with_the_job(exchange_.get(), kAfter);
  died("7");
  EXPECT_EXIT(end_with_the_job(exchange_.get(), kAfter), testing::KilledBySignal(SIGTERM),
              "rank 1 has ended with signal 11");
}

}  // namespace
}  // namespace shadowib
