// A member of a restarted job, for unit tests: an exchange in a directory of its own, and the facts of the job.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "hooks/job/current_job.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib {

class MemberTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/shadowib-member-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
    ASSERT_TRUE(Exchange::open("dir:" + directory_ + "/x", true, &exchange_).ok());
    g_job.exchange = exchange_.get();
    g_job.info.generation = 1;
    std::strcpy(g_job.info.directory, name);
    std::strcpy(g_job.info.job, "demo");
    std::strcpy(g_job.info.epoch, "g1-test");
  }
  void TearDown() override {
    g_job.exchange = nullptr;
    g_job.info = {};
    exchange_.reset();
    std::filesystem::remove_all(directory_);
  }

  std::string directory_;
  std::unique_ptr<Exchange> exchange_;
};

}  // namespace shadowib
