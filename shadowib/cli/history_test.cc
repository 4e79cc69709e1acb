#include "shadowib/cli/history.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "shadowib/cli/history_figures.h"
#include "shadowib/cli/metrics.h"
#include "shadowib/cli/report_page.h"

namespace shadowib::cli {
namespace {
namespace fs = std::filesystem;

class HistoryTest : public ::testing::Test {
 protected:
  HistoryTest() {
    char path[] = "/tmp/shadowib-history-XXXXXX";
    directory_ = ::mkdtemp(path);
  }
  ~HistoryTest() override { fs::remove_all(directory_); }

  // By a process of its own, which has ended when this returns.
  void write(const HistoryEvent& event) const {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(append_history(directory_, "j", event).ok() ? 0 : 1);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  std::size_t files() const {
    std::size_t count = 0;
    for (const auto& entry : fs::directory_iterator(history_path(directory_, "j")))
      count += entry.path().extension() == ".jsonl";
    return count;
  }
  std::vector<PastEvent> read(unsigned torn = 0) const {
    std::vector<PastEvent> events;
    unsigned found = 0;
    const Status status = read_history(directory_, "j", &events, &found);
    EXPECT_TRUE(status.ok()) << status.text();
    EXPECT_EQ(found, torn);
    return events;
  }
  std::string directory_;
};

TEST_F(HistoryTest, EventsOfManyWritersComeInTheOrderOfTime) {
  for (int i = 0; i < 3; ++i)
    write(HistoryEvent("checkpoint").add("set", "j.000" + std::to_string(i)).add("kill", i == 2));
  const std::vector<PastEvent> events = read();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].text("set"), "j.0000");
  EXPECT_EQ(events[2].number("kill"), 1);
  EXPECT_LE(events[0].time_ms, events[2].time_ms);
  EXPECT_EQ(files(), 3u);
}

// In whatever order a directory has the files of their writers.
TEST_F(HistoryTest, EventsOfOneMillisecondComeInTheOrderOfTime) {
  write(HistoryEvent("started"));
  EXPECT_EQ(read()[0].text("time").size(), std::string("2026-01-01T00:00:00.000000Z").size());
  for (int i = 9; i >= 0; --i)
    std::ofstream(history_path(directory_, "j") + "/elsewhere." + std::to_string(i) + ".jsonl")
        << "{\"time\":\"2026-01-01T00:00:00.00000" << i << "Z\",\"event\":\"" << i << "\"}\n";
  const std::vector<PastEvent> events = read();
  ASSERT_EQ(events.size(), 11u);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(events[i].name, std::to_string(i));
    EXPECT_EQ(events[i].time_ms, events[0].time_ms);
  }
}

// An event that is missing may be the one that counts.
TEST_F(HistoryTest, AFileThatCannotBeReadIsAnError) {
  write(HistoryEvent("started"));
  fs::create_directory(history_path(directory_, "j") + "/elsewhere.1.jsonl");
  std::vector<PastEvent> events;
  unsigned torn = 0;
  EXPECT_EQ(read_history(directory_, "j", &events, &torn).error(), EISDIR);
  EXPECT_TRUE(events.empty());
}

TEST_F(HistoryTest, WhatIsNoEventIsCountedAndPassedOver) {
  write(HistoryEvent("started"));
  std::ofstream(history_path(directory_, "j") + "/elsewhere.1.jsonl")
      << "{\"time\":\"2026-01-01T00:00:00.000Z\",\"event\":\"failure\"}\nnonsense\n{\"time\":\"2026-01-01\","
         "\"event\":\"x\"}\n"
         "[1]\n{\"time\":\"2026-01-01T00:00:01.000Z\",\"event\":\"chec";
  EXPECT_EQ(read(4).size(), 2u);
  EXPECT_EQ(read(4)[0].name, "failure");
}

TEST_F(HistoryTest, PackingLosesAndDoublesNothing) {
  for (int i = 0; i < 5; ++i) write(HistoryEvent("checkpoint").add("number", i));
  EXPECT_TRUE(append_history(directory_, "j", HistoryEvent("started")).ok());  // this process goes on
  ASSERT_TRUE(pack_history(directory_, "j").ok());
  EXPECT_EQ(files(), 2u);
  EXPECT_EQ(read().size(), 6u);
  // Cut short after the rename: what it has packed stands twice.
  std::string packed;
  for (const auto& entry : fs::directory_iterator(history_path(directory_, "j")))
    if (entry.path().filename().string().find(".0.jsonl") != std::string::npos) packed = entry.path();
  fs::copy_file(packed, history_path(directory_, "j") + "/elsewhere.7.jsonl");
  EXPECT_EQ(read().size(), 6u);
  for (int i = 0; i < 2; ++i) write(HistoryEvent("checkpoint").add("number", 10 + i));
  ASSERT_TRUE(pack_history(directory_, "j").ok());
  EXPECT_EQ(read().size(), 8u);
}

TEST_F(HistoryTest, PackingLeavesWhatItCannotRead) {
  for (int i = 0; i < 3; ++i) write(HistoryEvent("checkpoint").add("number", i));
  const std::string path = history_path(directory_, "j");
  std::vector<std::string> writers;
  for (const auto& entry : fs::directory_iterator(path)) writers.push_back(entry.path());
  // Only a regular file is read, also for root, who may read any.
  const std::string unread = directory_ + "/unread";
  fs::rename(writers[0], unread);
  fs::create_symlink(unread, writers[0]);
  ASSERT_TRUE(pack_history(directory_, "j").ok());
  EXPECT_TRUE(fs::is_symlink(fs::symlink_status(writers[0])));
  fs::remove(writers[0]);
  fs::rename(unread, writers[0]);
  EXPECT_EQ(read().size(), 3u);
  // Nothing is packed on top of lines that cannot be read.
  std::string packed;
  for (const auto& entry : fs::directory_iterator(path))
    if (entry.path().filename().string().find(".0.jsonl") != std::string::npos) packed = entry.path();
  fs::rename(packed, unread);
  fs::create_symlink(unread, packed);
  write(HistoryEvent("checkpoint").add("number", 3));
  EXPECT_EQ(pack_history(directory_, "j").code(), Code::kIo);
  fs::remove(packed);
  fs::rename(unread, packed);
  EXPECT_EQ(read().size(), 4u);
}

TEST_F(HistoryTest, ManyFilesArePackedByWhoWritesTheNext) {
  for (int i = 0; i < 70; ++i) write(HistoryEvent("checkpoint").add("number", i));
  EXPECT_LT(files(), 65u);
  EXPECT_EQ(read().size(), 70u);
}

PastEvent past(const std::string& line) {
  PastEvent event;
  EXPECT_TRUE(parse_event(line, &event)) << line;
  return event;
}

std::string at(int second, const std::string& rest) {
  char time[40];
  std::snprintf(time, sizeof(time), "2026-03-01T00:%02d:%02d.000Z", second / 60, second % 60);
  return "{\"time\":\"" + std::string(time) + "\"," + rest + "}";
}

std::vector<PastEvent> a_life() {
  return {
      past(at(0, R"("event":"started","command":"a <b> & \"c\"","backend":"ib2tcp")")),
      past(at(
          10,
          R"("event":"checkpoint","set":"j.0001","bytes":1048576,"members":2,"stopped_ms":20,"took_ms":30,"save_ms":15)")),
      past(at(20, R"("event":"checkpoint_failed","code":4,"error":"descriptor 7")")),
      past(at(
          30,
          R"("event":"clc","set":"j.a.0007","cluster":"a","sn":7,"bytes":1048576,"members":1,"stopped_ms":900,"took_ms":950)")),
      past(at(31, R"("event":"clc_failed","cluster":"a","code":4,"error":"descriptor 8")")),
      past(at(60, R"("event":"restart","set":"j.0001","ready_ms":500,"members":2,"backend":"auto")")),
      past(
          at(70, R"x("event":"failure","member":1,"process":77,"how":"killed by signal 11 (SIGSEGV)","lost_s":10)x")),
      past(at(70, R"("event":"ended","exit_code":20)")),
      past(at(75, R"("event":"restart","set":"j.0001","ready_ms":500,"members":2,"backend":"auto")")),
      past(at(
          90,
          R"("event":"checkpoint","set":"j.0002","bytes":2097152,"members":2,"stopped_ms":40,"took_ms":50,"kill":true)")),
      past(at(90, R"("event":"ended","exit_code":20,"set":"j.0002")")),
      past(at(100, R"("event":"restart","set":"j.0002","ready_ms":500,"members":2,"backend":"auto")"))};
}

TEST(HistoryEvents, OfOneClusterNameIt) {
  const std::vector<PastEvent> events = a_life();
  EXPECT_EQ(describe_event(events[3]), "j.a.0007: CLC 7, 1 member, 1.0 MiB, stopped for 900.0 ms, took 950.0 ms");
  EXPECT_EQ(describe_event(events[4]), "cluster a: descriptor 8");
}

// Checkpoints of one cluster are no sets of the job.
TEST(HistoryFigures, AddUp) {
  const std::vector<PastEvent> events = a_life();
  const HistoryFigures f = add_up(events);
  EXPECT_EQ(f.committed, 2u);
  EXPECT_EQ(f.failed, 1u);
  EXPECT_EQ(f.failures, 1u);
  EXPECT_EQ(f.restarts[static_cast<int>(RestartReason::kUnknown)], 1u);
  EXPECT_EQ(f.restarts[static_cast<int>(RestartReason::kAfterFailure)], 1u);
  EXPECT_EQ(f.restarts[static_cast<int>(RestartReason::kPlanned)], 1u);
  EXPECT_DOUBLE_EQ(f.lost_s, 10);
  EXPECT_DOUBLE_EQ(f.stopped_worst_ms, 40);
  EXPECT_EQ(f.last_checkpoint->text("set"), "j.0002");
  // 10 s lost, 1.5 s of restarting and 60 ms of standing, of 100 s.
  EXPECT_NEAR(f.useful_ratio(f.last_ms), 0.8844, 1e-9);
  EXPECT_EQ(add_up({}).useful_ratio(5), 1);
}

TEST(Metrics, AreWhatPrometheusReads) {
  const std::string text = metrics_text("j", a_life(), a_life().back().time_ms);
  EXPECT_NE(text.find("shadowib_checkpoints_total{job=\"j\",result=\"committed\"} 2\n"), std::string::npos);
  EXPECT_NE(text.find("shadowib_restarts_total{job=\"j\",reason=\"failure\"} 1\n"), std::string::npos);
  EXPECT_NE(text.find("shadowib_stopped_seconds_sum{job=\"j\"} 0.06\n"), std::string::npos);
  EXPECT_NE(text.find("shadowib_set_bytes{job=\"j\"} 2097152\n"), std::string::npos);
  EXPECT_NE(metrics_text("j", {}, 0).find("shadowib_checkpoints_total{job=\"j\",result=\"committed\"} 0\n"),
            std::string::npos);
}

TEST(Report, OfTenThousandEventsIsSmall) {
  std::vector<PastEvent> events;
  for (int i = 0; i < 10000; ++i) {
    char time[40];
    std::snprintf(time, sizeof(time), "2026-03-%02dT%02d:%02d:00.000Z", 1 + i / 1440, i / 60 % 24, i % 60);
    events.push_back(past(std::string("{\"time\":\"") + time + R"(","event":"checkpoint","set":"j.)" +
                          std::to_string(10000 + i) + R"(","bytes":)" + std::to_string(1000000 + i * 7919 % 100000) +
                          R"(,"members":4,"stopped_ms":)" + std::to_string(20 + i * 31 % 17) +
                          R"(,"took_ms":50,"save_ms":15.25})"));
  }
  const std::string page = report_page("/scratch/ckpt", "j", events, events.back().time_ms);
  EXPECT_LE(page.size(), 500'000u);
  EXPECT_EQ(page.find("NaN"), std::string::npos);
  EXPECT_EQ(page.find("inf"), std::string::npos);
}

TEST(Report, AnyHistoryMakesAPage) {
  const std::vector<PastEvent> life = a_life();
  for (std::size_t count = 1; count <= life.size(); ++count) {
    const std::string page = report_page("/d", "j", {life.begin(), life.begin() + static_cast<std::ptrdiff_t>(count)},
                                         life.back().time_ms);
    EXPECT_NE(page.find("a &lt;b&gt; &amp; &quot;c&quot;"), std::string::npos);
    EXPECT_EQ(page.find("a <b>"), std::string::npos);
    for (const char* foreign : {"http:", "https:", "<script", "@import", "url("})
      EXPECT_EQ(page.find(foreign), std::string::npos) << foreign;
    for (const char* odd : {"nan", "inf\"", "-inf"}) EXPECT_EQ(page.find(odd), std::string::npos) << count;
  }
}

}  // namespace
}  // namespace shadowib::cli
