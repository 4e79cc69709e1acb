// A far place has a set whole or not at all, whatever fails on the way.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "hooks/store/far_command.h"
#include "hooks/store/far_directory.h"
#include "hooks/store/far_set.h"
#include "hooks/store/files.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {
namespace fs = std::filesystem;

// Objects in memory. From the n-th operation on it fails; a put that fails leaves half an object.
class MemoryPlace : public FarPlace {
 public:
  std::map<std::string, std::string> objects;
  int operations_left = 1 << 30, failures_left = 1 << 30;
  int puts = 0;

  Status check() override { return {}; }
  Status stat(const std::string& name, FarObject* object) override {
    *object = {};
    SHADOWIB_TRY(next());
    if (objects.contains(name)) *object = {true, objects[name].size(), ""};
    return {};
  }
  Status put(const std::string& name, std::uint64_t bytes, const PieceSource& source) override {
    const Status fate = next();
    std::string all(bytes, 0);
    ++puts;
    SHADOWIB_TRY(source(all.data(), bytes));
    objects[name] = fate.ok() ? all : all.substr(0, bytes / 2);
    return fate;
  }
  Status get(const std::string& name, const PieceSink& sink) override {
    SHADOWIB_TRY(next());
    return sink(objects.at(name));
  }
  Status remove(const std::string& name) override {
    SHADOWIB_TRY(next());
    objects.erase(name);
    return {};
  }

 private:
  Status next() {
    if (operations_left > 0) {
      --operations_left;
      return {};
    }
    if (failures_left-- <= 0) return {};
    return Status::of(Code::kIo, EIO, "the store is away");
  }
};

std::vector<FarPiece> pieces() {
  return {far_text("member-0.img", "zero"), far_text("member-1.img", "one one"), far_text("manifest.xxh3", "sum"),
          far_text("manifest.json", "manifest")};
}

bool is_whole(const MemoryPlace& place) {
  const std::map<std::string, std::string> whole{{"job/a/member-0.img", "zero"},
                                                 {"job/a/member-1.img", "one one"},
                                                 {"job/a/manifest.xxh3", "sum"},
                                                 {"job/a/manifest.json", "manifest"}};
  return place.objects == whole;
}
// As a reader sees it: a manifest of the right size.
bool is_listed(const MemoryPlace& place) {
  const auto at = place.objects.find("job/a/manifest.json");
  return at != place.objects.end() && at->second == "manifest";
}

// A store that is empty, has an old object damaged, or has the manifest damaged.
class FarFlush : public testing::TestWithParam<std::string> {
 protected:
  void prepare(MemoryPlace* place) const {
    if (GetParam().empty()) return;
    FlushReport report;
    ASSERT_TRUE(flush_pieces(*place, "job/a/", pieces(), {}, &report).ok());
    place->objects["job/a/" + GetParam()] = "oops";
    place->puts = 0;
  }
};

TEST_P(FarFlush, LeavesASetWholeOrUnlistedWhereverItStops) {
  bool done = false;
  for (int operations = 0; !done; ++operations) {
    ASSERT_LT(operations, 100);
    MemoryPlace place;
    prepare(&place);
    const bool listed_before = is_listed(place);
    FlushReport report;
    place.operations_left = operations;
    done = flush_pieces(place, "job/a/", pieces(), {.tries = 1}, &report).ok();
    // Damage of the store's own is seen by the flush at the latest before its first put.
    if (place.puts > 0 || !listed_before) {
      EXPECT_EQ(is_listed(place), is_whole(place)) << operations;
    }
    if (done) {
      EXPECT_TRUE(is_whole(place)) << operations;  // it may be so before its last check
    }
    place.operations_left = 1 << 30;
    ASSERT_TRUE(flush_pieces(place, "job/a/", pieces(), {.tries = 1}, &report).ok());
    EXPECT_TRUE(is_whole(place)) << operations;
  }
}

TEST_P(FarFlush, SendsNothingThatIsThereAndRight) {
  MemoryPlace place;
  prepare(&place);
  FlushReport first, second;
  ASSERT_TRUE(flush_pieces(place, "job/a/", pieces(), {}, &first).ok());
  place.puts = 0;
  ASSERT_TRUE(flush_pieces(place, "job/a/", pieces(), {}, &second).ok());
  EXPECT_EQ(place.puts, 0);
  EXPECT_EQ(second.present, 4u);
  EXPECT_EQ(second.sent, 0u);
  const std::size_t wrong = GetParam().empty()              ? 4
                            : GetParam() == "manifest.json" ? 1
                                                            : 2;  // the manifest goes first
  EXPECT_EQ(first.sent, wrong);
  EXPECT_EQ(first.present, 4 - wrong);
}

INSTANTIATE_TEST_SUITE_P(, FarFlush, testing::Values("", "member-1.img", "manifest.xxh3", "manifest.json"),
                         [](const auto& info) {
                           return info.param.empty() ? "Empty" : "Damaged" + std::to_string(info.index);
                         });

TEST(Far, AFailureThatPassesIsTriedAgainABoundedNumberOfTimes) {
  for (int failures = 1; failures <= 3; ++failures) {
    MemoryPlace place;
    FlushReport report;
    place.operations_left = 5;
    place.failures_left = failures;
    int again = 0;
    FlushOptions options{.tries = 3, .pause_ms = 1};
    options.again = [&again](const Status& status) {
      EXPECT_STREQ(status.text(), "the store is away");
      ++again;
    };
    const Status status = flush_pieces(place, "job/a/", pieces(), options, &report);
    EXPECT_EQ(status.ok(), failures < 3);
    EXPECT_EQ(again, std::min(failures, 2));
    EXPECT_EQ(is_whole(place), failures < 3);
  }
}

TEST(Far, AnImageThatIsDamagedHereIsNotSentAndNotTriedAgain) {
  MemoryPlace place;
  FlushReport report;
  std::vector<FarPiece> broken = pieces();
  broken[1].open = far_text("member-1.img", "one two").open;
  const Status status = flush_pieces(place, "job/a/", broken, {.pause_ms = 1}, &report);
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_NE(std::string(status.text()).find("member-1.img"), std::string::npos) << status.text();
  EXPECT_EQ(place.puts, 2);
  EXPECT_FALSE(is_listed(place));
}

TEST(Far, ARateHoldsBytesBack) {
  MemoryPlace place;
  FlushReport report;
  const std::int64_t began_ns = monotonic_ns();
  ASSERT_TRUE(
      flush_pieces(place, "job/a/", {far_text("x", std::string(1000, 'x'))}, {.bytes_per_s = 20000}, &report).ok());
  EXPECT_GE(monotonic_ns() - began_ns, 99'000'000);  // 1000 bytes there, and 1000 back for the check
}

TEST(Far, NamesAndPlacesFollowTheirRules) {
  for (const char* name : {"job/sets.json", "my_job.1/0123456789abcdef/member-0.img"})
    EXPECT_TRUE(valid_object_name(name)) << name;
  for (const char* name : {"", "/a", "a/", "a//b", "../a", "a/..", "a b", "a;b", "-rf", "a/-x", "a/.b", "ä"})
    EXPECT_FALSE(valid_object_name(name)) << name;
  FarSpec spec;
  ASSERT_TRUE(parse_far("dir:/archive/", &spec).ok());
  EXPECT_EQ(spec.text(), "dir:/archive");
  ASSERT_TRUE(parse_far("exec:/bin/s3  --bucket b", &spec).ok());
  EXPECT_EQ(spec.text(), "exec:/bin/s3 --bucket b");
  ASSERT_TRUE(parse_far("exec:./s3", &spec).ok());
  EXPECT_EQ(spec.command[0][0], '/');
  for (const char* text : {"", "dir:", "exec:", "exec:  ", "/archive", "s3:bucket"})
    EXPECT_EQ(parse_far(text, &spec).code(), Code::kUsage) << text;
}

TEST(Far, AListIsReadBackAndDamageIsNoticed) {
  std::vector<FarSet> sets, back;
  add_far_set({1, std::string(32, 'a'), "2026-11-01T10:00:00Z", 100, 2, ""}, &sets);
  add_far_set({2, std::string(32, 'b'), "2026-11-01T11:00:00Z", 100, 2, "dir:/x"}, &sets);
  add_far_set({2, std::string(32, 'c'), "2026-11-02T10:00:00Z", 100, 2, ""}, &sets);  // of another life
  add_far_set({1, std::string(32, 'a'), "2026-11-01T10:00:00Z", 100, 3, ""}, &sets);
  ASSERT_EQ(sets.size(), 3u);
  const std::string text = encode_far_list(sets);
  ASSERT_TRUE(decode_far_list(text, "list", &back).ok());
  EXPECT_EQ(back, sets);
  EXPECT_EQ(find_far_set(sets, 2)->set_id, std::string(32, 'c'));
  EXPECT_EQ(find_far_set(sets, 1)->members, 3u);
  EXPECT_EQ(find_far_set(sets, 0)->number, 2u);
  EXPECT_EQ(find_far_set(sets, 3), nullptr);
  for (std::size_t cut = 0; cut + 1 < text.size(); ++cut)
    EXPECT_EQ(decode_far_list(text.substr(0, cut), "list", &back).code(), Code::kCorrupt) << cut;
}

TEST(Far, TheNewestSetIsOfTheLastLife) {
  std::vector<FarSet> sets;
  add_far_set({1, std::string(32, 'd'), "2026-11-02T10:00:00Z", 100, 2, ""}, &sets);
  add_far_set({8, std::string(32, 'a'), "2026-11-01T10:00:00Z", 100, 2, ""}, &sets);
  add_far_set({2, std::string(32, 'e'), "2026-11-02T10:00:00Z", 100, 2, ""}, &sets);
  add_far_set({9, std::string(32, 'b'), "2026-11-01T10:00:07Z", 100, 2, ""}, &sets);  // flushed again
  EXPECT_EQ(find_far_set(sets, 0)->number, 2u);
  EXPECT_EQ(find_far_set(sets, 9)->set_id, std::string(32, 'b'));
  std::sort(sets.begin(), sets.end(), is_older_far_set);
  std::string order;
  for (const FarSet& set : sets) order += set.set_id[0];
  EXPECT_EQ(order, "abde");
}

class FarFiles : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/shadowib-far-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    top_ = name;
  }
  void TearDown() override { fs::remove_all(top_); }

  // A command of that body, which has the words as $1 and $2.
  std::vector<std::string> command(const std::string& body) {
    const std::string path = top_ + "/command";
    std::ofstream(path) << "#!/bin/sh\ncd " << top_ << "\n" << body << "\n";
    ::chmod(path.c_str(), 0700);
    return {path};
  }
  static PieceSource bytes_of(char c) {
    return [c](char* to, std::size_t bytes) {
      std::fill(to, to + bytes, c);
      return Status();
    };
  }
  static void expect_words(const Status& status, std::initializer_list<const char*> words) {
    for (const char* word : words)
      EXPECT_NE(std::string(status.text()).find(word), std::string::npos) << word << " in: " << status.text();
  }

  std::string top_;
};

constexpr std::uint64_t kMuch = 3'000'000;
constexpr std::size_t kPage = 4096;

TEST_F(FarFiles, ADirectoryKeepsObjects) {
  FarDirectory place(top_);
  FarObject object;
  ASSERT_TRUE(place.stat("job/a/x", &object).ok());
  EXPECT_FALSE(object.found);
  fs::create_directories(top_ + "/job/a");
  std::ofstream(top_ + "/job/a/.x.part-12345678") << "of a flush that was killed";
  ASSERT_TRUE(place.put("job/a/x", kMuch, bytes_of('x')).ok());
  ASSERT_TRUE(place.stat("job/a/x", &object).ok());
  EXPECT_TRUE(object.found && object.bytes == kMuch);
  EXPECT_EQ(std::distance(fs::directory_iterator(top_ + "/job/a"), fs::directory_iterator()), 1);
  std::string back;
  ASSERT_TRUE(place
                  .get("job/a/x",
                       [&back](std::string_view part) {
                         back += part;
                         return Status();
                       })
                  .ok());
  EXPECT_EQ(back, std::string(kMuch, 'x'));
  // A source that fails leaves what was there.
  const Status status = place.put("job/a/x", 10, [](char*, std::size_t) { return Status(Code::kAborted, 0, "no"); });
  EXPECT_EQ(status.code(), Code::kAborted);
  EXPECT_EQ(fs::file_size(top_ + "/job/a/x"), kMuch);
  ASSERT_TRUE(place.remove("job/a/x").ok());
  ASSERT_TRUE(place.remove("job/a/x").ok());
  EXPECT_FALSE(fs::exists(top_ + "/job/a"));
}

// Whole pages of a file that are in the page cache.
std::size_t pages_in_cache(const std::string& path) {
  const std::size_t bytes = fs::file_size(path) / kPage * kPage;
  std::vector<unsigned char> pages(bytes / kPage);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  void* mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  EXPECT_TRUE(mapped != MAP_FAILED && ::mincore(mapped, bytes, pages.data()) == 0) << std::strerror(errno);
  ::munmap(mapped, bytes);
  ::close(fd);
  return static_cast<std::size_t>(
      std::count_if(pages.begin(), pages.end(), [](auto page) { return (page & 1) != 0; }));
}

// tmpfs(5) takes O_DIRECT, and is the page cache.
bool writes_around_the_cache(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_DIRECT, 0600);
  alignas(kPage) static const char page[kPage] = {};
  const bool wrote = fd >= 0 && ::write(fd, page, sizeof(page)) == static_cast<ssize_t>(sizeof(page));
  ::close(fd);
  return wrote && pages_in_cache(path) == 0;
}

TEST_F(FarFiles, ADirectoryLeavesThePageCacheToThePrograms) {
  if (!writes_around_the_cache(top_ + "/page")) GTEST_SKIP() << "the file system of /tmp goes through the page cache";
  FarDirectory place(top_);
  ASSERT_TRUE(place.put("job/a/x", kMuch, bytes_of('x')).ok());
  // What is left of the last step.
  EXPECT_LE(pages_in_cache(top_ + "/job/a/x"), kMuch % kFileStep / kPage);
  const std::size_t before = pages_in_cache(top_ + "/job/a/x");
  ASSERT_TRUE(place.get("job/a/x", [](std::string_view) { return Status(); }).ok());
  EXPECT_LE(pages_in_cache(top_ + "/job/a/x"), before);
}

TEST_F(FarFiles, ADirectoryThatIsNotMountedIsNotMade) {
  FarDirectory place(top_ + "/archive");
  FarObject object;
  for (const Status& status : {place.check(), place.stat("a/b", &object), place.put("a/b", 1, bytes_of('x'))}) {
    EXPECT_EQ(status.code(), Code::kNotFound);
    expect_words(status, {"/archive", "mount"});
  }
  EXPECT_FALSE(fs::exists(top_ + "/archive"));
}

TEST_F(FarFiles, ADirectoryThatMayNotBeWrittenToIsRefusedWithARemedy) {
  const Status status = FarDirectory("/sys").put("job/x", 1, bytes_of('x'));
  EXPECT_EQ(status.code(), Code::kIo);
  expect_words(status, {"/sys/job", "--far"});
  EXPECT_FALSE(may_pass(status));
}

TEST_F(FarFiles, ARelativePlaceNeedsAWorkingDirectory) {
  const fs::path before = fs::current_path();
  FarSpec spec;
  fs::create_directory(top_ + "/gone");
  fs::current_path(top_ + "/gone");
  fs::remove(top_ + "/gone");
  for (const char* text : {"dir:archive", "exec:./s3"}) {
    const Status status = parse_far(text, &spec);
    EXPECT_EQ(status.code(), Code::kUsage) << text;
    expect_words(status, {"working directory"});
  }
  fs::current_path(before);
}

TEST_F(FarFiles, ACommandKeepsObjects) {
  FarCommand place(command("n=$(echo \"$2\" | tr / _)\n"
                           "case $1 in\n"
                           "  put) cat >$n; [ $(wc -c <$n) = $SHADOWIB_FAR_BYTES ];;\n"
                           "  get) cat $n;;\n"
                           "  stat) if [ -e $n ]; then wc -c <$n; else echo absent; fi;;\n"
                           "  rm) rm -f $n;;\n"
                           "esac"),
                   20000);
  FarObject object;
  ASSERT_TRUE(place.check().ok());
  ASSERT_TRUE(place.stat("job/x", &object).ok());
  EXPECT_FALSE(object.found);
  for (const std::uint64_t bytes : {kMuch, std::uint64_t{0}}) {
    Status status = place.put("job/x", bytes, bytes_of('x'));
    ASSERT_TRUE(status.ok()) << status.text();
    ASSERT_TRUE((status = place.stat("job/x", &object)).ok()) << status.text();
    EXPECT_TRUE(object.found && object.bytes == bytes) << object.bytes;
    std::uint64_t got = 0;
    ASSERT_TRUE(place
                    .get("job/x",
                         [&got](std::string_view part) {
                           got += part.size();
                           return Status();
                         })
                    .ok());
    EXPECT_EQ(got, bytes);
  }
  ASSERT_TRUE(place.remove("job/x").ok());
  ASSERT_TRUE(place.stat("job/x", &object).ok());
  EXPECT_FALSE(object.found);
}

TEST_F(FarFiles, ACommandThatFailsIsNamedWithItsObjectCodeAndWords) {
  FarCommand place(command("cat >/dev/null; echo connection >&2; echo refused >&2; exit 3"), 20000);
  FarObject object;
  for (const Status& status :
       {place.put("job/x", kMuch, bytes_of('x')), place.stat("job/x", &object),
        place.get("job/x", [](std::string_view) { return Status(); }), place.remove("job/x")}) {
    EXPECT_EQ(status.code(), Code::kIo);
    expect_words(status, {"/command", "job/x", "exit code 3", "connection refused"});
    EXPECT_TRUE(may_pass(status));
  }
  EXPECT_FALSE(object.found);
}

TEST_F(FarFiles, ACommandThatCannotBeMendedByAnotherTryIsNotTriedAgain) {
  FarObject object;
  for (const char* code : {"64", "77", "78", "126", "127"})
    EXPECT_FALSE(may_pass(FarCommand(command(std::string("exit ") + code), 20000).stat("x", &object))) << code;
  FarCommand none({top_ + "/none"}, 20000);
  EXPECT_EQ(none.check().code(), Code::kNotFound);
  EXPECT_FALSE(may_pass(none.stat("x", &object)));
  FarCommand killed(command("kill -9 $$"), 20000);
  const Status status = killed.stat("x", &object);
  EXPECT_TRUE(may_pass(status));
  expect_words(status, {"signal 9"});
}

TEST_F(FarFiles, ACommandThatTakesOnlyPartHasFailed) {
  FarCommand place(command("head -c 1000 >/dev/null; exit 0"), 20000);
  const Status status = place.put("job/x", kMuch, bytes_of('x'));
  EXPECT_EQ(status.code(), Code::kIo);
  expect_words(status, {"job/x", "of 3000000 bytes"});
}

// In each, the command and its child end, and nobody waits for the child's end of the pipe.
TEST_F(FarFiles, ACommandThatStallsIsEnded) {
  for (const char* body : {"sleep 1000", "head -c 1000 >/dev/null; sleep 1000", "echo 1; sleep 1000 & wait",
                           "trap '' TERM INT HUP; sleep 1000"}) {
    FarCommand place(command(body), 300);
    const Status status = place.put("job/x", kMuch, bytes_of('x'));
    EXPECT_EQ(status.code(), Code::kTimeout) << body;
    expect_words(status, {"/command put job/x", "no byte for 300 ms"});
    EXPECT_TRUE(may_pass(status));
  }
}

// The wait status is still that of the command.
TEST_F(FarFiles, WhatACommandLeavesRunningIsEnded) {
  const std::string fifo = top_ + "/alive";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const char* code : {"0", "3"}) {
    const int fd = ::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    FarCommand place(command(std::string("exec 9>alive; sleep 1000 & echo absent; exit ") + code), 20000);
    FarObject object;
    const Status status = place.stat("job/x", &object);
    EXPECT_EQ(status.ok(), code[0] == '0') << status.text();
    if (!status.ok()) expect_words(status, {"exit code 3"});
    pollfd gone{fd, POLLIN, 0};
    EXPECT_EQ(::poll(&gone, 1, 20000), 1) << "its child lives";
    EXPECT_EQ(gone.revents, POLLHUP);
    ::close(fd);
  }
}

// A command may take as long as it likes while bytes go on.
TEST_F(FarFiles, ACommandThatIsSlowGoesOn) {
  FarCommand place(command("for i in $(seq 28); do echo x; sleep 0.25; done; cat >/dev/null"), 6000);
  const Status status = place.put("job/x", 200'000, bytes_of('x'));
  EXPECT_TRUE(status.ok()) << status.text();
}

TEST_F(FarFiles, WordsOfStatThatAreNoneAreRefused) {
  FarObject object;
  const std::string hash(32, 'a');
  for (const std::string& text : {std::string("5"), "5 " + hash}) {
    ASSERT_TRUE(FarCommand(command("echo " + text), 20000).stat("x", &object).ok()) << text;
    EXPECT_TRUE(object.found && object.bytes == 5 && object.xxh3 == (text == "5" ? "" : hash));
  }
  for (const char* text : {"", "yes", "5 bytes", "5 abc", "-1", "absent x"}) {
    const Status status = FarCommand(command(std::string("echo '") + text + "'"), 20000).stat("x", &object);
    EXPECT_EQ(status.code(), Code::kIo) << text;
    EXPECT_FALSE(may_pass(status));
  }
}

// An object that is cut short by the store is noticed by the flush, and sent again.
TEST_F(FarFiles, AnObjectThatIsCutShortIsSentAgain) {
  const std::string store =
      "case $1 in\n"
      "  put) if [ -e cut ]; then cat >$2; else cat >/dev/null; touch cut; printf ze >$2; fi;;\n"
      "  get) cat $2;;\n"
      "  stat) if [ -e $2 ]; then wc -c <$2; else echo absent; fi;;\n"
      "esac";
  FarCommand place(command("mkdir -p job/a\n" + store), 20000);
  FlushReport report;
  std::string told;
  FlushOptions options{.tries = 2, .pause_ms = 1};
  options.again = [&told](const Status& status) { told = status.text(); };
  const Status status = flush_pieces(place, "job/a/", pieces(), options, &report);
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_NE(told.find("job/a/member-0.img"), std::string::npos) << told;
  std::string text;
  ASSERT_TRUE(read_file(top_ + "/job/a/member-0.img", &text).ok());
  EXPECT_EQ(text, "zero");
}

}  // namespace
}  // namespace shadowib
