// PMI-1: what is understood of it, what we answer, and a rank's conversation before and after its launcher is gone.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>

#include "hooks/imager/descriptors/capture/launcher_socket.h"
#include "hooks/job/current_job.h"
#include "hooks/launcher/connection.h"
#include "hooks/launcher/launcher.h"
#include "hooks/launcher/pmi_descriptor.h"
#include "hooks/launcher/pmi_request.h"
#include "hooks/launcher/pmi_server.h"

namespace shadowib {
namespace {

constexpr char kSpace[] = "kvs_77_0", kAfter[] = "g1-b";
constexpr char kMaxes[] = "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024";

std::vector<PmiRequest> all_of(PmiRequests* requests, std::string_view bytes) {
  std::vector<PmiRequest> found;
  for (PmiRequest request; requests->take(&bytes, &request);) found.push_back(request);
  EXPECT_TRUE(bytes.empty());
  return found;
}

TEST(PmiRequests, AreTheSameInWhateverPiecesTheyCome) {
  const std::string text =
      "cmd=put kvsname=a key=k value=b=c\ncmd=barrier_in\n"
      "mcmd=spawn\nnprocs=2\nexecname=./a b\ntotspawns=2\nspawnssofar=1\nendcmd\n"
      "mcmd=spawn\nnprocs=1\ntotspawns=2\nspawnssofar=2\nendcmd\ncmd=get\n";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    PmiRequests requests;
    std::vector<PmiRequest> found = all_of(&requests, std::string_view(text).substr(0, cut));
    for (PmiRequest& more : all_of(&requests, std::string_view(text).substr(cut))) found.push_back(more);
    ASSERT_EQ(found.size(), 4u) << cut;
    EXPECT_EQ(found[0].command, "put");
    EXPECT_EQ(found[0].words, (PmiWords{{"kvsname", "a"}, {"key", "k"}, {"value", "b=c"}}));
    EXPECT_TRUE(is_pmi_barrier(found[1]));
    EXPECT_EQ(found[2].command, "spawn");
    EXPECT_EQ(found[2].words["nprocs"], "1") << "of the last part";
    EXPECT_EQ(found[3].command, "get");
    EXPECT_TRUE(requests.is_between());
  }
}

TEST(PmiRequests, AreIncompleteUpToTheirLastByte) {
  for (const std::string text : {"cmd=get key=x\n", "mcmd=spawn\na=b\nendcmd\n",
                                 "mcmd=spawn\ntotspawns=2\nspawnssofar=1\nendcmd\nmcmd=spawn\nendcmd\n"}) {
    PmiRequests requests;
    EXPECT_TRUE(requests.is_between());
    for (std::size_t i = 0; i + 1 < text.size(); ++i) {
      EXPECT_TRUE(all_of(&requests, text.substr(i, 1)).empty()) << text << i;
      EXPECT_FALSE(requests.is_between()) << text << i;
    }
    EXPECT_EQ(all_of(&requests, "\n").size(), 1u);
    EXPECT_TRUE(requests.is_between());
  }
}

TEST(PmiRequests, MalformedOnesHaveNoCommand) {
  PmiRequests requests;
  for (const std::string text : {"\n", "cmd\n", "=\n", "put key=x\n", " cmd\n"}) {
    const std::vector<PmiRequest> found = all_of(&requests, text);
    ASSERT_EQ(found.size(), 1u) << text;
    EXPECT_EQ(found[0].command, "") << text;
  }
  const std::vector<PmiRequest> binary = all_of(&requests, std::string_view("cmd=\0x\xff\n", 8));
  ASSERT_EQ(binary.size(), 1u);
  EXPECT_EQ(binary[0].command, std::string_view("\0x\xff", 3));
}

// Nobody keeps them, and what comes behind them is understood.
TEST(PmiRequests, EndlessOnesEnd) {
  const std::string filler(PmiRequests::kLongest, 'x');
  for (const std::string& text : {"cmd=put key=" + filler + filler + "\n", "mcmd=spawn\na=" + filler + "\nendcmd\n",
                                  "mcmd=spawn\na=" + filler + "endcmd\nendcmdx\n" + filler + "\nendcmd\n"}) {
    PmiRequests requests;
    EXPECT_TRUE(all_of(&requests, text.substr(0, text.size() - 1)).empty());
    std::vector<PmiRequest> found = all_of(&requests, "\ncmd=get key=y\n");
    ASSERT_EQ(found.size(), 2u);
    EXPECT_EQ(found[0].command, "");
    EXPECT_TRUE(found[0].words.empty());
    EXPECT_EQ(found[1].command, "get");
  }
}

// A rank without a launcher, beside another one on the board.
class Server : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / ("shadowib-pmi-" + std::to_string(::getpid()));
    std::filesystem::remove_all(directory_);
    ASSERT_TRUE(Exchange::open("dir:" + directory_, true, &exchange_).ok());
    std::strcpy(own_.name, kSpace);
    own_.size = 2;
    own_.connected = true;
    known_.constant["get_maxes"] = kMaxes;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  Board board() { return {exchange_.get(), kAfter, kSpace}; }
  std::string answer(const std::string& line) {
    PmiRequests requests;
    std::string_view bytes(line);
    PmiRequest request;
    EXPECT_TRUE(requests.take(&bytes, &request)) << line;
    return PmiServer(board(), &known_, &own_).answer(request);
  }
  static std::string put(const std::string& key, const std::string& value) {
    return std::string("cmd=put kvsname=") + kSpace + " key=" + key + " value=" + value + "\n";
  }
  static std::string get(const std::string& key) {
    return std::string("cmd=get kvsname=") + kSpace + " key=" + key + "\n";
  }

  std::string directory_;
  std::unique_ptr<Exchange> exchange_;
  LauncherRank own_;
  PmiKnowledge known_;
};

TEST_F(Server, TellsWhatEachRankHasPut) {
  EXPECT_EQ(answer(get("mine")), "cmd=get_result rc=-1 msg=key_mine_not_found value=unknown\n");
  EXPECT_EQ(answer(put("mine", "1")), "cmd=put_result rc=0 msg=success\n");
  EXPECT_EQ(answer(get("mine")), "cmd=get_result rc=0 msg=success value=1\n");
  StoredValue value;
  bool found = false;
  ASSERT_TRUE(board().find_put_of_any(2, "mine", &found, &value).ok());
  EXPECT_TRUE(found);
  EXPECT_EQ(value.bytes, "1");
  ASSERT_TRUE(board().publish_puts(1, {{"its", {0, "2"}}}).ok());
  EXPECT_EQ(answer(get("its")), "cmd=get_result rc=0 msg=success value=2\n");
}

TEST_F(Server, TellsWhatTheLauncherHasTold) {
  note_pmi_answer({"get", {{"key", "PMI_process_mapping"}}}, "cmd=get_result rc=0 msg=success value=(vector,(0,1,2))",
                  &known_, &own_);
  note_pmi_answer({"get", {{"key", "none"}}}, "cmd=get_result rc=-1 msg=no value=unknown", &known_, &own_);
  note_pmi_answer({"get_appnum", {}}, "cmd=appnum appnum=7", &known_, &own_);
  note_pmi_answer({"put", {{"key", "k"}, {"value", "v"}}}, "cmd=put_result rc=0 msg=success", &known_, &own_);
  note_pmi_answer({"put", {{"key", "refused"}, {"value", "v"}}}, "cmd=put_result rc=-1 msg=no", &known_, &own_);
  EXPECT_EQ(answer(get("PMI_process_mapping")), "cmd=get_result rc=0 msg=success value=(vector,(0,1,2))\n");
  EXPECT_NE(answer(get("none")).find("rc=-1"), std::string::npos);
  EXPECT_EQ(answer("cmd=get_appnum\n"), "cmd=appnum appnum=7\n");
  EXPECT_EQ(answer("cmd=get_maxes\n"), std::string(kMaxes) + "\n");
  EXPECT_TRUE(own_.committed);
  EXPECT_EQ(own_.committed_puts, (StoredValues{{"k", {0, "v"}}}));
}

TEST_F(Server, RefusesWhatItCannotKeep) {
  EXPECT_NE(answer(put(std::string(64, 'k'), "v")).find("cmd=put_result rc=-1"), std::string::npos);
  EXPECT_NE(answer(put("k", std::string(1024, 'v'))).find("cmd=put_result rc=-1"), std::string::npos);
  EXPECT_NE(answer("cmd=put kvsname=another key=k value=v\n").find("cmd=put_result rc=-1"), std::string::npos);
  EXPECT_NE(answer("cmd=put\n").find("cmd=put_result rc=-1"), std::string::npos);
  EXPECT_NE(answer("cmd=get kvsname=another key=k\n").find("cmd=get_result rc=-1"), std::string::npos);
  EXPECT_TRUE(own_.committed_puts.empty());
  EXPECT_EQ(answer(put(std::string(63, 'k'), std::string(1023, 'v'))), "cmd=put_result rc=0 msg=success\n");
}

TEST_F(Server, RefusesWhatOnlyALauncherCanDo) {
  EXPECT_EQ(answer("mcmd=spawn\nnprocs=1\nendcmd\n"), "cmd=spawn_result rc=-1 msg=restarted_without_a_launcher\n");
  EXPECT_EQ(answer("cmd=publish_name service=s port=p\n"),
            "cmd=publish_result rc=-1 msg=restarted_without_a_launcher\n");
  EXPECT_EQ(answer("cmd=unpublish_name service=s\n"),
            "cmd=unpublish_result rc=-1 msg=restarted_without_a_launcher\n");
  EXPECT_EQ(answer("cmd=lookup_name service=s\n"), "cmd=lookup_result rc=-1 msg=restarted_without_a_launcher\n");
  EXPECT_EQ(answer("cmd=mystery\n"), "cmd=mystery_result rc=-1 msg=unknown_request\n");
  EXPECT_EQ(answer("nonsense\n"), "cmd=error rc=-1 msg=unknown_request\n");
}

TEST_F(Server, BarriersWaitForAllThatHaveNotLeft) {
  PmiServer server(board(), &known_, &own_);
  std::vector<std::uint32_t> missing;
  count_pmi_barrier(&own_);
  ASSERT_TRUE(server.tell_barrier(&missing).ok());
  ASSERT_TRUE(server.look_at_barrier(&missing).ok());
  EXPECT_EQ(missing, std::vector<std::uint32_t>{1});
  ASSERT_TRUE(board().publish_fence("all", 1, 1).ok());
  ASSERT_TRUE(server.look_at_barrier(&missing).ok());
  EXPECT_TRUE(missing.empty());
  count_pmi_barrier(&own_);
  ASSERT_TRUE(server.tell_barrier(&missing).ok());
  ASSERT_TRUE(server.look_at_barrier(&missing).ok());
  EXPECT_EQ(missing, std::vector<std::uint32_t>{1}) << "not those of the barrier before";
  ASSERT_TRUE(board().publish_done(1).ok());
  ASSERT_TRUE(server.look_at_barrier(&missing).ok());
  EXPECT_TRUE(missing.empty());
  EXPECT_EQ(answer("cmd=finalize\n"), "cmd=finalize_ack\n");
  EXPECT_FALSE(own_.connected);
  std::vector<std::uint32_t> done;
  ASSERT_TRUE(board().list_done(&done).ok());
  EXPECT_EQ(done, (std::vector<std::uint32_t>{0, 1}));
}

// The launcher's end of a rank's descriptor, in a thread. It answers at once, but for the requests of `holds`.
class Launcher {
 public:
  explicit Launcher(int fd) : fd_(fd), thread_([this] { serve(); }) {}
  ~Launcher() {
    hang_up();
    thread_.join();
    ::close(fd_);
  }
  void hang_up() { ::shutdown(fd_, SHUT_RDWR); }
  void send(const std::string& text) {
    EXPECT_EQ(::send(fd_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  std::size_t heard(const std::string& line) {
    std::lock_guard guard(lock_);
    return static_cast<std::size_t>(std::count(heard_.begin(), heard_.end(), line));
  }
  std::atomic<bool> holds{false};  // all it hears from now on

 private:
  void serve() {
    std::string came;
    char chunk[256];
    for (ssize_t n; (n = ::recv(fd_, chunk, sizeof(chunk), 0)) > 0;) {
      came.append(chunk, static_cast<std::size_t>(n));
      for (std::size_t end; (end = came.find('\n')) != std::string::npos; came.erase(0, end + 1))
        hear(came.substr(0, end));
    }
  }
  void hear(const std::string& line) {
    {
      std::lock_guard guard(lock_);
      heard_.push_back(line);
    }
    if (holds) return;
    PmiWords words = parse_pmi_words(line);
    const std::string command = words["cmd"];
    if (command == "init") send("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
    if (command == "get_maxes") send(std::string(kMaxes) + "\n");
    if (command == "get_my_kvsname") send(std::string("cmd=my_kvsname kvsname=") + kSpace + "\n");
    if (command == "get_appnum") send("cmd=appnum appnum=0\n");
    if (command == "get_universe_size") send("cmd=universe_size size=2\n");
    if (command == "get") send("cmd=get_result rc=0 msg=success value=of_" + words["key"] + "\n");
    if (command == "put") send("cmd=put_result rc=0 msg=success\n");
    if (command == "barrier_in") send("cmd=barrier_out\n");
    if (command == "finalize") send("cmd=finalize_ack\n");
  }
  int fd_;
  std::mutex lock_;
  std::vector<std::string> heard_;
  std::thread thread_;
};

class Conversation : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    void* const handle = ::dlopen(FAKE_MPI, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle, nullptr) << ::dlerror();
    connect_ = reinterpret_cast<int (*)()>(::dlsym(handle, "fake_mpi_connect"));
    write_ = reinterpret_cast<bool (*)(const char*)>(::dlsym(handle, "fake_mpi_write"));
    read_ = reinterpret_cast<int (*)(char*, int)>(::dlsym(handle, "fake_mpi_read"));
    close_ = reinterpret_cast<int (*)()>(::dlsym(handle, "fake_mpi_close"));
  }
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / ("shadowib-pmi-" + std::to_string(::getpid()));
    std::filesystem::remove_all(directory_);
    ASSERT_TRUE(Exchange::open("dir:" + directory_, true, &exchange_).ok());
    g_job.exchange = exchange_.get();
    std::strcpy(g_job.info.epoch, "g0-a");
    LauncherRank& r = launcher_rank();
    r.gone = false;
    r.connected = false;
    r.size = 0;
    r.committed = false;
    r.committed_puts.clear();
    r.fences.clear();
    r.done.clear();
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    launcher_ = std::make_unique<Launcher>(ends[1]);
    ::setenv("PMI_FD", std::to_string(ends[0]).c_str(), 1);
    ::setenv("PMI_RANK", "0", 1);
    ::setenv("PMI_SIZE", "2", 1);
    ASSERT_EQ(connect_(), ends[0]);
    ASSERT_EQ(ask("cmd=init pmi_version=1 pmi_subversion=1\n"),
              "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
  }
  void TearDown() override {
    close_();
    launcher_.reset();
    std::filesystem::remove_all(directory_);
  }
  static std::string read() {
    char text[2048];
    const int n = read_(text, sizeof(text));
    return n >= 0 ? std::string(text, static_cast<std::size_t>(n)) : "error";
  }
  static std::string ask(const char* question) { return write_(question) ? read() : "error"; }
  void await_heard(const std::string& line) {
    for (int i = 0; i < 100000 && launcher_->heard(line) == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(launcher_->heard(line), 1u) << line;
  }
  // As far as a process can that is still the same: a read of its launcher ends, and there is nobody.
  void restart() {
    std::strcpy(g_job.info.epoch, kAfter);
    ASSERT_TRUE(launcher_is_gone(exchange_.get(), kAfter, 5).ok());
    launcher_->hang_up();
  }
  Board peers_board() { return {exchange_.get(), kAfter, kSpace}; }

  static inline int (*connect_)();
  static inline bool (*write_)(const char*);
  static inline int (*read_)(char*, int);
  static inline int (*close_)();
  std::string directory_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Launcher> launcher_;
};

TEST_F(Conversation, LearnsWhoItIs) {
  const LauncherRank& r = launcher_rank();
  EXPECT_STREQ(r.name, kSpace);
  EXPECT_EQ(r.rank, 0u);
  EXPECT_EQ(r.size, 2u);
  EXPECT_TRUE(r.connected);
  std::string json;
  launcher_describe(&json);
  EXPECT_NE(json.find("\"kind\":\"pmi1\""), std::string::npos) << json;
}

TEST_F(Conversation, PassesOnAndKeepsForAfterwards) {
  EXPECT_EQ(ask("cmd=put kvsname=kvs_77_0 key=k value=v\n"), "cmd=put_result rc=0 msg=success\n");
  EXPECT_EQ(ask("cmd=get kvsname=kvs_77_0 key=x\n"), "cmd=get_result rc=0 msg=success value=of_x\n");
  EXPECT_EQ(ask("cmd=barrier_in\n"), "cmd=barrier_out\n");
  EXPECT_EQ(launcher_->heard("cmd=put kvsname=kvs_77_0 key=k value=v"), 1u);
  restart();
  EXPECT_EQ(ask("cmd=get kvsname=kvs_77_0 key=x\n"), "cmd=get_result rc=0 msg=success value=of_x\n");
  EXPECT_EQ(ask("cmd=get kvsname=kvs_77_0 key=PMI_process_mapping\n"),
            "cmd=get_result rc=0 msg=success value=of_PMI_process_mapping\n")
      << "though the program has not asked for it before";
  EXPECT_EQ(ask("cmd=get_universe_size\n"), "cmd=universe_size size=2\n");
  StoredValue value;
  bool found = false;
  ASSERT_TRUE(peers_board().find_put_of_any(2, "k", &found, &value).ok());
  EXPECT_EQ(value.bytes, "v");
  EXPECT_EQ(ask("cmd=finalize\n"), "cmd=finalize_ack\n");
}

// What has been asked is answered once, though the launcher that heard of it is gone.
TEST_F(Conversation, EndsABarrierThatARestartFoundHalfDone) {
  launcher_->holds = true;
  std::atomic<bool> over{false};
  std::thread rank([&] {
    EXPECT_EQ(ask("cmd=barrier_in\n"), "cmd=barrier_out\n");
    over = true;
  });
  await_heard("cmd=barrier_in");
  EXPECT_TRUE(launcher_hold_calls(5000).ok()) << "no checkpoint waits for a barrier";
  restart();
  EXPECT_FALSE(over);
  ASSERT_TRUE(peers_board().publish_fence("all", 1, 1).ok());
  rank.join();
  // The next one is another.
  std::thread next([&] { EXPECT_EQ(ask("cmd=barrier_in\n"), "cmd=barrier_out\n"); });
  ASSERT_TRUE(peers_board().publish_fence("all", 1, 2).ok());
  next.join();
  EXPECT_EQ(launcher_rank().fences["all"], 2u);
}

// Half an answer was read when the launcher went.
TEST_F(Conversation, AnswersFromItsBeginningWhatWasCutShort) {
  launcher_->holds = true;
  ASSERT_TRUE(write_("cmd=barrier_in\n"));
  await_heard("cmd=barrier_in");
  std::thread rank([&] { EXPECT_EQ(read(), "cmd=barrier_out\n"); });
  launcher_->send("cmd=barr");
  ASSERT_TRUE(peers_board().publish_fence("all", 1, 1).ok());
  restart();
  rank.join();
}

TEST_F(Conversation, IsLetEndBeforeACheckpoint) {
  launcher_->holds = true;
  ASSERT_TRUE(write_("cmd=get kvsname=kvs_77_0 key=y\n"));
  const Status status = launcher_hold_calls(20);
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_NE(std::string(status.text()).find("PMI"), std::string::npos) << status.text();
  launcher_->send("cmd=get_result rc=0 msg=success value=late\n");
  EXPECT_EQ(read(), "cmd=get_result rc=0 msg=success value=late\n");
  EXPECT_TRUE(launcher_hold_calls(5000).ok());
  launcher_release_calls();
  // A part of a request is one, too.
  launcher_->holds = false;
  ASSERT_TRUE(write_("cmd=get kvsname=kvs_77_0 "));
  EXPECT_FALSE(launcher_hold_calls(20).ok());
  EXPECT_EQ(ask("key=z\n"), "cmd=get_result rc=0 msg=success value=of_z\n");
}

TEST_F(Conversation, GivesAnswersInThePiecesThatAreAskedFor) {
  ASSERT_TRUE(write_("cmd=get_appnum\ncmd=barrier_in\n"));
  std::string all;
  for (char text[7]; all.size() < std::strlen("cmd=appnum appnum=0\ncmd=barrier_out\n");) {
    const int n = read_(text, sizeof(text));
    ASSERT_GT(n, 0);
    all.append(text, static_cast<std::size_t>(n));
  }
  EXPECT_EQ(all, "cmd=appnum appnum=0\ncmd=barrier_out\n");
}

TEST_F(Conversation, AbortEndsTheRankAndIsTold) {
  restart();
  EXPECT_EXIT(write_("cmd=abort exitcode=3\n"), testing::ExitedWithCode(3), "");
  std::string text, name;
  bool found = false;
  AbortRequest abort;
  ASSERT_TRUE(exchange_->get(abort_key(kAfter), &text, &found).ok());
  ASSERT_TRUE(found && decode_abort(text, &name, &abort));
  EXPECT_EQ(name, kSpace);
  EXPECT_EQ(abort.status, 3);
  EXPECT_TRUE(abort.ranks.empty());
}

TEST_F(Conversation, AnAbortThatNobodyHasHeardOfIsTold) {
  launcher_->holds = true;
  ASSERT_TRUE(write_("cmd=abort exitcode=4\n"));
  EXPECT_TRUE(launcher_hold_calls(5000).ok()) << "no answer comes to it";
  restart();
  EXPECT_EXIT(read(), testing::ExitedWithCode(4), "");
}

TEST_F(Conversation, EndsWithALauncherThatIsLost) {
  launcher_->hang_up();
  EXPECT_EQ(read(), "");
  EXPECT_TRUE(launcher_hold_calls(5000).ok());
  launcher_release_calls();
}

// Of a pipe that a launcher has left open, the copies of a standard stream, and what a rank has opened itself.
TEST(Inherited, IsLeftOutWhatTheLauncherHasOpenToo) {
  int ends[2], theirs[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  ASSERT_EQ(::pipe(theirs), 0);
  const pid_t rank = ::fork();
  if (rank == 0) {
    int own[2];
    const bool made = ::pipe(own) == 0 && ::dup2(ends[1], 1) == 1;
    const int copy = ::dup(1);
    leave_out_inherited(ends[0]);
    using descriptors::is_left_out;
    const bool left_out = is_left_out(theirs[0]) && is_left_out(theirs[1]);
    const bool kept = !is_left_out(own[0]) && !is_left_out(own[1]) && !is_left_out(1) && !is_left_out(copy) &&
                      !is_left_out(ends[0]);
    ::_exit(made && left_out && kept ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(rank, &status, 0), rank);
  EXPECT_EQ(status, 0);
  for (const int fd : {ends[0], ends[1], theirs[0], theirs[1]}) ::close(fd);
}

// A later version, and another use of the number.
TEST(OtherWords, AreNoneOfOurs) {
  for (const std::string words : {"cmd=init pmi_version=2 pmi_subversion=0\n", "GET / HTTP/1.0\n"}) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    note_pmi_descriptor(ends[0]);
    EXPECT_TRUE(is_pmi_descriptor(ends[0]));
    EXPECT_EQ(write_pmi(words.data(), words.size()), static_cast<ssize_t>(words.size()));
    EXPECT_FALSE(is_pmi_descriptor(ends[0]));
    char text[64];
    EXPECT_EQ(::read(ends[1], text, sizeof(text)), static_cast<ssize_t>(words.size()));
    EXPECT_TRUE(launcher_hold_calls(5000).ok());
    launcher_release_calls();
    for (const int end : ends) ::close(end);
  }
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  note_pmi_descriptor(pipe[1]);
  EXPECT_FALSE(is_pmi_descriptor(pipe[1]));
  for (const int end : pipe) ::close(end);
}

}  // namespace
}  // namespace shadowib
