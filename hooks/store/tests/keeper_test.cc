// Keepers give away what is right, take what is right, and talk to nobody without the job's key.
#include "hooks/store/keeper.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "hooks/job/job_directory.h"
#include "hooks/job/near_directory.h"
#include "hooks/store/files.h"
#include "hooks/store/hex_hash.h"
#include "hooks/store/keeper_client.h"
#include "hooks/store/near_place.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/this_host.h"

namespace shadowib {
namespace {
namespace fs = std::filesystem;

constexpr char kSet[] = "0123456789abcdef0123456789abcdef";

// One keeper, and two places: as of two hosts.
class KeeperTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/shadowib-keeper-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    top_ = name;
    fs::create_directories(job_paths(directory(), "job").alive);
    fs::create_directories(here_.place = top_ + "/here");
    fs::create_directories(there_.place = top_ + "/there");
    write_key(std::string(32, 'k'));
    for (int i = 0; i < 300000; ++i) content_ += static_cast<char>(i * 7 + i / 1000);
    piece_ = {"member-0.img", content_.size(), hex_hash(content_)};
    options_ = {.directory = directory(), .job = "job", .wanted = [this] { return wanted_.load() != 0; }};
    options_.turn_ms = 20;
    options_.collect = [this](bool dry_run, std::vector<std::string>* removed) {
      while (held_.load() != 0) futex_wait(&held_, 1, 1'000'000'000);
      *removed = {"/a b/one", "/a b/two"};
      return dry_run ? Status(Code::kIo, EIO, "dry") : Status();
    };
    options_.ready = [this] {
      ready_ = 1;
      futex_wake(&ready_, 1);
    };
    thread_ = std::thread([this] { status_ = run_keeper(options_); });
    while (ready_.load() == 0) futex_wait(&ready_, 0, 1'000'000'000);
    ASSERT_TRUE(find_keeper(directory(), "job", this_host(), &keeper_).ok());
  }
  void TearDown() override {
    wanted_ = 0;
    thread_.join();
    EXPECT_TRUE(status_.ok()) << status_.text();
    EXPECT_EQ(find_keeper(directory(), "job", this_host(), &keeper_).code(), Code::kNotFound);
    fs::remove_all(top_);
  }

  std::string directory() const { return top_ + "/ckpt"; }
  void write_key(const std::string& key) {
    std::ofstream(job_paths(directory(), "job").key, std::ios::binary | std::ios::trunc) << key;
  }
  void save(const NearSetId& set, const std::string& content) {
    int fd = -1;
    ASSERT_TRUE(make_near_set(set.place, set.job, set.set_id, directory(), &fd).ok());
    ::close(fd);
    std::ofstream(path(set), std::ios::binary | std::ios::trunc) << content;
  }
  std::string path(const NearSetId& set) { return near_set_path(set.place, set.job, set.set_id) + "/" + piece_.file; }
  std::string read(const NearSetId& set) {
    std::string content;
    return read_file(path(set), &content).ok() ? content : "";
  }
  int connect_stranger() {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(keeper_.addresses.back().port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    return fd;
  }
  // A socket that stands for the keeper of another host.
  int listen_elsewhere(KeeperInfo* info) {
    sockaddr_in name{};
    socklen_t bytes = sizeof(name);
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&name), bytes), 0);
    EXPECT_EQ(::listen(listener, 1), 0);
    EXPECT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&name), &bytes), 0);
    *info = {.host = "elsewhere", .name = "b", .addresses = {{"127.0.0.1", ntohs(name.sin_port)}}};
    return listener;
  }
  std::int64_t soon() { return monotonic_ns() + 10'000'000'000; }

  std::string top_, content_;
  NearSetId here_{"", "job", kSet}, there_{"", "job", kSet};
  Piece piece_;
  KeeperOptions options_;
  KeeperInfo keeper_;
  std::atomic<std::uint32_t> ready_{0}, wanted_{1}, held_{0};
  Status status_;
  std::thread thread_;
};

TEST_F(KeeperTest, GivesAndChecksPiecesAndDropsSets) {
  std::set<std::string> good;
  ASSERT_TRUE(ask_what_is_good(directory(), keeper_, here_, {piece_}, soon(), &good).ok());
  EXPECT_TRUE(good.empty());
  save(here_, content_);
  ASSERT_TRUE(ask_what_is_good(directory(), keeper_, here_, {piece_}, soon(), &good).ok());
  EXPECT_EQ(good, std::set<std::string>{piece_.file});
  save(here_, content_.substr(1) + "x");
  ASSERT_TRUE(ask_what_is_good(directory(), keeper_, here_, {piece_}, soon(), &good).ok());
  EXPECT_TRUE(good.empty()) << "a piece with another hash counts as lost";
  // A look is at sizes alone.
  ASSERT_TRUE(ask_what_is_there(directory(), keeper_, here_, {piece_}, soon(), &good).ok());
  EXPECT_EQ(good, std::set<std::string>{piece_.file});
  save(here_, content_.substr(1));
  ASSERT_TRUE(ask_what_is_there(directory(), keeper_, here_, {piece_}, soon(), &good).ok());
  EXPECT_TRUE(good.empty());
  ASSERT_TRUE(ask_to_drop(directory(), keeper_, here_, soon()).ok());
  ASSERT_TRUE(ask_what_is_there(directory(), keeper_, here_, {piece_}, soon(), &good).ok());
  EXPECT_TRUE(good.empty());
  EXPECT_FALSE(fs::exists(near_root(here_.place) + "/job"));
}

// A keeper serves one place as another's host would: the set is asked for there and written here.
TEST_F(KeeperTest, ACopyIsWholeAndRightOrNotThere) {
  save(here_, content_);
  const auto fetch_to_there = [&] {
    std::unique_ptr<PeerConnection> peer;
    SHADOWIB_TRY(PeerConnection::connect(keeper_.addresses, std::string(32, 'k'), soon(), &peer));
    peer->set_deadline(monotonic_ns() + 2'000'000'000);
    Fields reply;
    SHADOWIB_TRY(peer->send({{"op", "get"}, {"place", here_.place}, {"set", kSet}, {"file", piece_.file}}));
    SHADOWIB_TRY(peer->receive(&reply));
    SHADOWIB_TRY(status_from_fields(reply));
    return write_piece(there_, directory(), piece_,
                       [&peer](char* to, std::size_t bytes) { return peer->receive_bytes(to, bytes); });
  };
  Status status = fetch_to_there();
  ASSERT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(read(there_), content_);
  // Altered on its way: what was there stays, and nothing else is left.
  std::string other = content_;
  other[123456] ^= 1;
  save(here_, other);
  EXPECT_EQ(fetch_to_there().code(), Code::kCorrupt);
  EXPECT_EQ(read(there_), content_);
  // Cut short.
  save(here_, content_.substr(0, 1000));
  EXPECT_EQ(fetch_to_there().code(), Code::kTimeout) << "the reply tells 1000 bytes; this peer waits for all";
  EXPECT_EQ(read(there_), content_);
  std::size_t files = 0;
  for (const auto& file : fs::directory_iterator(fs::path(path(there_)).parent_path())) {
    EXPECT_FALSE(file.path().filename().string().starts_with(".")) << file.path();
    ++files;
  }
  EXPECT_EQ(files, 2u) << "the piece, and the link to its home";
  EXPECT_EQ(fetch_pieces(directory(), keeper_, here_, {piece_}, soon()).code(), Code::kCorrupt);
}

// gc comes while a piece is written.
TEST_F(KeeperTest, APieceUnderWayIsNoLeftover) {
  std::vector<std::string> removed;
  const std::string set = near_set_path(there_.place, there_.job, there_.set_id);
  std::size_t given = 0;
  const Status status = write_piece(there_, directory(), piece_, [&](char* to, std::size_t bytes) {
    EXPECT_TRUE(remove_parts(set, false, &removed).ok());
    content_.copy(to, bytes, given);
    given += bytes;
    return Status();
  });
  ASSERT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(removed, std::vector<std::string>{});
  EXPECT_EQ(read(there_), content_);
}

TEST_F(KeeperTest, PullsFromAKeeperAndLeavesAloneWhatIsRight) {
  save(here_, content_);
  ASSERT_TRUE(ask_to_pull(directory(), keeper_, this_host(), here_, {piece_}, soon()).ok());
  Status status = ask_to_pull(directory(), keeper_, "elsewhere", here_, {piece_}, soon());
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_NE(std::string(status.text()).find("elsewhere"), std::string::npos) << status.text();
}

// A keeper that is stopped: its kernel takes the connection, and nobody answers. Without the deadline it would be 3
// s.
TEST_F(KeeperTest, ALookEndsAtItsDeadline) {
  KeeperInfo info;
  const int listener = listen_elsewhere(&info);
  std::set<std::string> there;
  const std::int64_t began_ns = monotonic_ns();
  EXPECT_EQ(ask_what_is_there(directory(), info, here_, {piece_}, began_ns + 100'000'000, &there).code(),
            Code::kTimeout);
  EXPECT_LT(monotonic_ns() - began_ns, 3'000'000'000);
  ::close(listener);
}

// A keeper of another host, which gives one piece from a place of its own.
TEST_F(KeeperTest, TellsOfBytesThatAreFetched) {
  save(here_, content_);
  KeeperInfo info;
  const int listener = listen_elsewhere(&info);
  std::thread other([&] {
    std::unique_ptr<PeerConnection> peer;
    Fields request, reply{{"bytes", std::to_string(piece_.bytes)}};
    reply.merge(fields_of_status({}));
    int fd = -1;
    std::uint64_t size = 0;
    const int socket = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK);
    ASSERT_TRUE(PeerConnection::accept(socket, std::string(32, 'k'), soon(), &peer).ok());
    ASSERT_TRUE(peer->receive(&request).ok() && peer->send(reply).ok());
    ASSERT_TRUE(open_piece(here_, piece_.file, &fd, &size).ok());
    EXPECT_TRUE(peer->send_file(fd, 0, size).ok());
    ::close(fd);
  });
  std::uint64_t moved = 0;
  const Status status =
      fetch_pieces(directory(), info, there_, {piece_}, soon(), [&moved](std::uint64_t part) { moved += part; });
  other.join();
  ::close(listener);
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(read(there_), content_);
  EXPECT_EQ(moved, piece_.bytes);
}

// Three hosts' pieces in one place, which the one keeper serves for all.
class KeeperParityTest : public KeeperTest {
 protected:
  void SetUp() override {
    KeeperTest::SetUp();
    group_.losses = 1;
    for (int h = 0; h < 3; ++h) {
      ParityGroup::Host& host = group_.hosts.emplace_back();
      host.host = {this_host(), "h" + std::to_string(h)};
      const std::string content = content_.substr(static_cast<std::size_t>(h) * 1000, h == 1 ? 5 : 250000);
      host.images = {{"member-" + std::to_string(h) + ".img", content.size(), hex_hash(content)}};
      host.parity = {"parity-" + std::to_string(h), 0, kNoHash};
      save(here_, content, host.images[0].file);
      from_[host.images[0].file] = this_host();
    }
    group_.set_sizes();
  }
  void save(const NearSetId& set, const std::string& content, const std::string& file) {
    piece_.file = file;
    KeeperTest::save(set, content);
  }
  Status make(Piece* piece) {
    std::vector<SegmentHashes> hashes;
    for (int h = 0; h < 3; ++h)
      SHADOWIB_TRY(ask_for_hashes(directory(), keeper_, here_, group_, h, soon(), &hashes.emplace_back()));
    return ask_to_make(directory(), keeper_, here_, group_, from_, hashes, soon(), piece, &failed_);
  }
  void make_parities() {
    for (ParityGroup::Host& host : group_.hosts) {
      const Status status = make(&host.parity);
      ASSERT_TRUE(status.ok()) << status.text();
    }
    for (const ParityGroup::Host& host : group_.hosts) from_[host.parity.file] = this_host();
  }
  Status mend(Piece piece) {
    return ask_to_make(directory(), keeper_, here_, group_, from_, {}, soon(), &piece, &failed_);
  }

  ParityGroup group_;
  PieceHosts from_;
  std::string failed_;
};

TEST_F(KeeperParityTest, MakesParitiesAndWhatIsLost) {
  make_parities();
  std::set<std::string> good;
  for (const Piece& piece : group_.pieces()) {
    piece_.file = piece.file;
    fs::remove(path(here_));
    from_.erase(piece.file);
    const Status status = mend(piece);
    EXPECT_TRUE(status.ok()) << piece.file << ": " << status.text();
    from_[piece.file] = this_host();
  }
  ASSERT_TRUE(ask_what_is_good(directory(), keeper_, here_, group_.pieces(), soon(), &good).ok());
  EXPECT_EQ(good.size(), 6u);
}

TEST_F(KeeperParityTest, TellsOfBytesThatAreMade) {
  make_parities();
  std::uint64_t moved = 0;
  Piece piece = group_.hosts[0].images[0];
  piece_.file = piece.file;
  fs::remove(path(here_));
  from_.erase(piece.file);
  const Status status = make_piece(directory(), here_, group_, from_, {}, soon(), &piece, &failed_,
                                   [&moved](std::uint64_t bytes) { moved += bytes; });
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(moved, piece.bytes);
}

TEST_F(KeeperParityTest, ADamagedImageGivesNoParities) {
  save(here_, content_.substr(1, 250000), "member-0.img");
  Status status = make(&group_.hosts[1].parity);
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_NE(std::string(status.text()).find("member-0.img"), std::string::npos) << status.text();
  // Damaged after its host has told of it.
  save(here_, content_.substr(0, 250000), "member-0.img");
  std::vector<SegmentHashes> hashes;
  for (int h = 0; h < 3; ++h)
    ASSERT_TRUE(ask_for_hashes(directory(), keeper_, here_, group_, h, soon(), &hashes.emplace_back()).ok());
  save(here_, content_.substr(1, 250000), "member-0.img");
  status = ask_to_make(directory(), keeper_, here_, group_, from_, hashes, soon(), &group_.hosts[1].parity, &failed_);
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_NE(std::string(status.text()).find("host"), std::string::npos) << status.text();
  piece_.file = group_.hosts[1].parity.file;
  EXPECT_FALSE(fs::exists(path(here_)));
}

TEST_F(KeeperParityTest, WhatCannotBeMadeIsNotThere) {
  make_parities();
  from_.erase("member-0.img");
  from_.erase("parity-1");
  from_.erase("parity-2");
  EXPECT_EQ(mend(group_.hosts[0].images[0]).code(), Code::kOk) << "it is there and right, and is left alone";
  piece_.file = "member-0.img";
  fs::remove(path(here_));
  EXPECT_EQ(mend(group_.hosts[0].images[0]).code(), Code::kNotFound);
  EXPECT_EQ(failed_, "") << "nobody has failed";
  // A source that has gone meanwhile is told of, so that another is asked.
  from_["parity-1"] = from_["parity-2"] = "elsewhere";
  EXPECT_EQ(mend(group_.hosts[0].images[0]).code(), Code::kNotFound);
  EXPECT_EQ(failed_, "elsewhere");
  // A wrong source does not become an image.
  from_["parity-1"] = from_["parity-2"] = this_host();
  for (const char* file : {"parity-1", "parity-2"}) save(here_, std::string(group_.segment, 'x'), file);
  EXPECT_EQ(mend(group_.hosts[0].images[0]).code(), Code::kCorrupt);
  piece_.file = "member-0.img";
  EXPECT_FALSE(fs::exists(path(here_)));
}

TEST_F(KeeperParityTest, HostileRequestsAreRefused) {
  std::unique_ptr<PeerConnection> peer;
  ASSERT_TRUE(PeerConnection::connect(keeper_.addresses, std::string(32, 'k'), soon(), &peer).ok());
  peer->set_deadline(soon());
  const auto answer = [&](Fields request) {
    Fields reply;
    request.insert({{"place", here_.place}, {"set", kSet}});
    EXPECT_TRUE(peer->send(request).ok() && peer->receive(&reply).ok());
    return status_from_fields(reply).code();
  };
  const Piece& image = group_.hosts[0].images[0];
  Fields request{{"piece", encode_pieces({group_.hosts[0].parity})}, {"from", encode_piece_hosts(from_)}};
  encode_group(group_, &request);
  const auto with = [&](const char* operation, const char* name, const std::string& value) {
    Fields changed = request;
    changed["op"] = operation;
    changed[name] = value;
    return answer(changed);
  };
  EXPECT_EQ(answer({{"op", "hash"}}), Code::kVersion);
  EXPECT_EQ(with("hash", "row", "3"), Code::kVersion);
  EXPECT_EQ(with("hash", "row", "18446744073709551615"), Code::kVersion);
  EXPECT_EQ(with("hash", "losses", "3"), Code::kVersion);
  EXPECT_EQ(with("hash", "images0", "../secret:1:" + image.xxh3), Code::kVersion);
  EXPECT_EQ(answer({{"op", "make"}}), Code::kVersion);
  EXPECT_EQ(with("make", "piece", ""), Code::kVersion);
  EXPECT_EQ(with("make", "piece", "secret:1:" + image.xxh3), Code::kVersion);
  EXPECT_EQ(with("make", "piece", image.file + ":1:" + image.xxh3), Code::kVersion);
  EXPECT_EQ(with("make", "piece", image.file + ":" + std::to_string(image.bytes) + ":" + kNoHash), Code::kVersion)
      << "an image has a hash";
  EXPECT_EQ(with("make", "from", "member-1.img:../keepers/x"), Code::kVersion);
  EXPECT_EQ(with("make", "from", "member-1.img"), Code::kVersion);
  EXPECT_EQ(with("make", "hashes1", "00"), Code::kCorrupt) << "too few hashes";
  const auto part = [&](const char* offset, const char* bytes) {
    return answer({{"op", "get"}, {"file", image.file}, {"offset", offset}, {"bytes", bytes}});
  };
  EXPECT_EQ(part("250001", "0"), Code::kCorrupt);
  EXPECT_EQ(part("249999", "2"), Code::kCorrupt);
  EXPECT_EQ(part("1", "18446744073709551615"), Code::kCorrupt);
  EXPECT_EQ(part("250000", "0"), Code::kOk);
}

TEST_F(KeeperTest, WhoDoesNotKnowTheKeyGetsNothing) {
  save(here_, content_);
  std::unique_ptr<PeerConnection> peer;
  EXPECT_FALSE(PeerConnection::connect(keeper_.addresses, std::string(32, 'x'), soon(), &peer).ok());
  // A restart gives the job another key: it counts at once.
  write_key(std::string(32, 'n'));
  EXPECT_FALSE(PeerConnection::connect(keeper_.addresses, std::string(32, 'k'), soon(), &peer).ok());
  std::set<std::string> good;
  EXPECT_TRUE(ask_what_is_good(directory(), keeper_, here_, {piece_}, soon(), &good).ok());
  // Bytes that are no greeting, and no bytes.
  for (const char* words : {"GET / HTTP/1.1\r\nHost: somebody\r\n\r\nand more than forty bytes of it", ""}) {
    const int fd = connect_stranger();
    ASSERT_EQ(::send(fd, words, std::strlen(words), MSG_NOSIGNAL), static_cast<ssize_t>(std::strlen(words)));
    ::shutdown(fd, SHUT_WR);
    char answer[100];
    EXPECT_LE(::recv(fd, answer, sizeof(answer), 0), 0);
    ::close(fd);
  }
}

// A listening socket of this host, where it is in `at`. The caller closes it.
int listen_here(sockaddr_in* at) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  at->sin_family = AF_INET;
  at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(*at);
  EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(at), bytes), 0);
  EXPECT_EQ(::listen(listener, 4), 0);
  EXPECT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(at), &bytes), 0);
  return listener;
}

// One share of a restart renews the job's key while another one asks for its images.
TEST_F(KeeperTest, WhoComesWithTheKeyOfBeforeARestartReadsTheNewOne) {
  sockaddr_in at{};
  const int listener = listen_here(&at);
  KeeperInfo info = keeper_;
  info.addresses = {{"127.0.0.1", ntohs(at.sin_port)}};
  const std::string renewed(32, 'n');
  std::thread keeper([&] {
    const int first = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    write_key(renewed);
    std::unique_ptr<PeerConnection> peer;
    EXPECT_FALSE(PeerConnection::accept(first, renewed, soon(), &peer).ok());
    const int second = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    EXPECT_TRUE(PeerConnection::accept(second, renewed, soon(), &peer).ok());
  });
  std::unique_ptr<PeerConnection> peer;
  const Status status = connect_keeper(directory(), "job", info, soon(), &peer);
  EXPECT_TRUE(status.ok()) << status.text();
  ::shutdown(listener, SHUT_RDWR);  // or the thread waits for the second
  keeper.join();
  ::close(listener);
}

// The keeper serves 64 at a time. It drops a stranger that proves nothing after 5 s.
TEST_F(KeeperTest, WhoComesWhenItIsFullWaitsForAPlace) {
  std::vector<int> strangers;
  for (int i = 0; i < 64; ++i) strangers.push_back(connect_stranger());
  const int last = connect_stranger();
  const std::string hello = std::string("SIBK\2\0\0\0", 8) + std::string(32, 'n');
  ASSERT_EQ(::send(last, hello.data(), hello.size(), MSG_NOSIGNAL), static_cast<ssize_t>(hello.size()));
  char answer[40];
  EXPECT_EQ(::recv(last, answer, sizeof(answer), MSG_WAITALL), static_cast<ssize_t>(sizeof(answer)));
  for (const int fd : strangers) ::close(fd);
  ::close(last);
}

// Established connections of a port on either end, by the timers that the kernel has for them.
std::vector<int> timers_of_port(int port) {
  std::vector<int> timers;
  std::ifstream table("/proc/self/net/tcp");
  std::string line;
  while (std::getline(table, line)) {
    unsigned local = 0, remote = 0, state = 0, timer = 0;
    if (std::sscanf(line.c_str(), " %*u: %*x:%x %*x:%x %x %*x:%*x %x:", &local, &remote, &state, &timer) == 4 &&
        state == 1 && (local == static_cast<unsigned>(port) || remote == static_cast<unsigned>(port)))
      timers.push_back(static_cast<int>(timer));
  }
  return timers;
}

// Else a restart would wait for an hour for the rest of an image.
TEST_F(KeeperTest, BothSidesNoticeThatTheOthersHostIsLost) {
  constexpr int kKeepAlive = 2;
  std::unique_ptr<PeerConnection> peer;
  ASSERT_TRUE(PeerConnection::connect({keeper_.addresses.back()}, std::string(32, 'k'), soon(), &peer).ok());
  Fields reply;
  ASSERT_TRUE(peer->send({{"op", "ping"}}).ok());
  ASSERT_TRUE(peer->receive(&reply).ok());
  std::vector<int> timers;
  do {
    timers = timers_of_port(keeper_.addresses.back().port);
  } while (std::find(timers.begin(), timers.end(), 1) != timers.end());  // its last bytes are not acknowledged yet
  EXPECT_EQ(timers, (std::vector<int>{kKeepAlive, kKeepAlive}));
}

// Or what takes long would look like a keeper that is stopped.
TEST_F(KeeperTest, GivesSignsOfLifeWhileItWorks) {
  held_ = 1;
  std::unique_ptr<PeerConnection> peer;
  ASSERT_TRUE(PeerConnection::connect({keeper_.addresses.back()}, std::string(32, 'k'), soon(), &peer).ok());
  ASSERT_TRUE(peer->send({{"op", "collect"}}).ok());
  for (int signs = 0; signs < 2; ++signs) {
    std::uint32_t length = 1;
    EXPECT_TRUE(peer->receive_bytes(&length, sizeof(length)).ok());
    EXPECT_EQ(length, 0u);
  }
  held_ = 0;
  futex_wake(&held_, 1);
  Fields reply;
  const Status status = peer->receive(&reply);
  ASSERT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(field_text(reply, "removed0"), "/a b/one");
}

// A peer that has proved the key and then is stopped, or its host: its kernel goes on taking bytes and answering
// probes.
TEST_F(KeeperTest, IsNotWaitedForWhenItIsStopped) {
  std::unique_ptr<PeerConnection> stopped, peer;
  sockaddr_in at{};
  const int listener = listen_here(&at);
  std::thread keeper([&] {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    EXPECT_TRUE(PeerConnection::accept(fd, std::string(32, 'k'), soon(), &stopped).ok());
  });
  const Status connected =
      PeerConnection::connect({{"127.0.0.1", ntohs(at.sin_port)}}, std::string(32, 'k'), soon(), &peer);
  keeper.join();
  ::close(listener);
  ASSERT_TRUE(connected.ok()) << connected.text();
  peer->set_deadline(monotonic_ns() + 3600'000'000'000);
  peer->set_silence(50'000'000);
  Fields reply;
  const Status status = peer->receive(&reply);
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_NE(std::string(status.text()).find("no sign of life"), std::string::npos) << status.text();
}

// A decoder that has lost one source leaves the others in the middle of what they send.
TEST_F(KeeperTest, APeerThatGoesInTheMiddleOfAPieceDoesNoHarm) {
  ASSERT_NE(::signal(SIGPIPE, SIG_DFL), SIG_ERR);
  wanted_ = 0;
  thread_.join();
  wanted_ = 1, ready_ = 0;
  thread_ = std::thread([this] { status_ = run_keeper(options_); });
  while (ready_.load() == 0) futex_wait(&ready_, 0, 1'000'000'000);
  ASSERT_TRUE(find_keeper(directory(), "job", this_host(), &keeper_).ok());
  save(here_, std::string(32 << 20, 'x'));  // more than sockets hold
  {
    std::unique_ptr<PeerConnection> peer;
    Fields reply;
    ASSERT_TRUE(PeerConnection::connect({keeper_.addresses.back()}, std::string(32, 'k'), soon(), &peer).ok());
    ASSERT_TRUE(peer->send({{"op", "get"}, {"place", here_.place}, {"set", kSet}, {"file", piece_.file}}).ok());
    ASSERT_TRUE(peer->receive(&reply).ok());
  }
  // Its end is told when the keeper has noticed.
  wanted_ = 0;
  thread_.join();
  EXPECT_TRUE(status_.ok()) << status_.text();
  wanted_ = 1, ready_ = 0;
  thread_ = std::thread([this] { status_ = run_keeper(options_); });
  while (ready_.load() == 0) futex_wait(&ready_, 0, 1'000'000'000);
}

TEST_F(KeeperTest, RequestsCannotLeadOutOfTheSet) {
  save(here_, content_);
  std::ofstream(top_ + "/secret") << "secret";
  std::unique_ptr<PeerConnection> peer;
  ASSERT_TRUE(PeerConnection::connect(keeper_.addresses, std::string(32, 'k'), soon(), &peer).ok());
  const auto refused = [&](const Fields& request) {
    Fields reply;
    EXPECT_TRUE(peer->send(request).ok());
    EXPECT_TRUE(peer->receive(&reply).ok());
    return !status_from_fields(reply).ok();
  };
  for (const char* file : {"../../../secret", "/etc/passwd", "home", ".hidden", ""})
    EXPECT_TRUE(refused({{"op", "get"}, {"place", here_.place}, {"set", kSet}, {"file", file}})) << file;
  for (const char* set : {"../job", "", "0123456789ABCDEF0123456789abcdef"})
    EXPECT_TRUE(refused({{"op", "drop"}, {"place", here_.place}, {"set", set}})) << set;
  EXPECT_TRUE(refused({{"op", "drop"}, {"place", "here"}, {"set", kSet}}));
  EXPECT_TRUE(
      refused({{"op", "pull"}, {"place", here_.place}, {"set", kSet}, {"pieces", "../x:1:" + std::string(32, '0')}}));
  EXPECT_TRUE(refused({{"op", "pull"},
                       {"place", here_.place},
                       {"set", kSet},
                       {"pieces", encode_pieces({piece_})},
                       {"from", "../keepers/" + this_host()}}));
  EXPECT_TRUE(refused({{"op", "dance"}, {"place", here_.place}, {"set", kSet}}));
  EXPECT_EQ(read(here_), content_);
}

TEST_F(KeeperTest, CollectsByWhatItWasGiven) {
  std::vector<std::string> removed;
  ASSERT_TRUE(ask_to_collect(directory(), "job", keeper_, false, soon(), &removed).ok());
  EXPECT_EQ(removed, (std::vector<std::string>{"/a b/one", "/a b/two"}));
  const Status status = ask_to_collect(directory(), "job", keeper_, true, soon(), &removed);
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(std::string(status.text()).find("dry"), std::string::npos) << status.text();
}

// Looks all the time while keepers come and go.
TEST_F(KeeperTest, NobodyFindsTheAddressesOfAnEarlierOne) {
  for (int round = 0; round < 10; ++round) {
    wanted_ = 0;
    thread_.join();
    ASSERT_TRUE(status_.ok()) << status_.text();
    ready_ = 0, wanted_ = 1;
    ASSERT_TRUE(publish_keeper(directory(), "job", {.host = this_host(), .name = "earlier"}).ok());
    thread_ = std::thread([this] { status_ = run_keeper(options_); });
    while (!find_keeper(directory(), "job", this_host(), &keeper_).ok()) {
    }
    EXPECT_NE(keeper_.name, "earlier");
    while (ready_.load() == 0) futex_wait(&ready_, 0, 1'000'000'000);
  }
}

TEST_F(KeeperTest, AHostHasOne) {
  EXPECT_EQ(run_keeper(options_).code(), Code::kBusy);
  ASSERT_EQ(live_keepers(directory(), "job").size(), 1u);
}

}  // namespace
}  // namespace shadowib
