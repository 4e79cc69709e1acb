// The job of this process, for tests of parts of the agent: a directory and an exchange of its own, until the object
// ends.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "hooks/job/current_job.h"
#include "hooks/job/job_directory.h"

namespace shadowib {

class DirectoryJob {
 public:
  explicit DirectoryJob(const char* epoch) {
    std::string name = ::testing::TempDir() + "job-XXXXXX";
    top_ = ::mkdtemp(name.data());
    EXPECT_TRUE(Exchange::open("dir:" + top_ + "/x", true, &exchange_).ok());
    g_job.exchange = exchange_.get();
    std::strcpy(g_job.info.epoch, epoch);
    std::strcpy(g_job.info.directory, top_.c_str());
    std::strcpy(g_job.info.job, "job");
    std::filesystem::create_directories(job_paths(g_job.info.directory, g_job.info.job).top);
  }
  ~DirectoryJob() {
    g_job.exchange = nullptr;
    g_job.info = {};
    std::filesystem::remove_all(top_);
  }
  DirectoryJob(const DirectoryJob&) = delete;
  DirectoryJob& operator=(const DirectoryJob&) = delete;

  const std::string& top() const { return top_; }
  Exchange& exchange() { return *exchange_; }

 private:
  std::string top_;
  std::unique_ptr<Exchange> exchange_;
};

}  // namespace shadowib
