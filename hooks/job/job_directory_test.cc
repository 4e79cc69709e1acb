#include "hooks/job/job_directory.h"

#include <gtest/gtest.h>

namespace shadowib {
namespace {

TEST(JobName, IsWhatADirectoryAndAKeyMayBeCalled) {
  for (const char* good : {"a", "demo", "demo.0001", "x-1_2", "_x", "9"}) EXPECT_TRUE(valid_job_name(good)) << good;
  for (const char* bad : {"", ".", "..", ".x", "-x", "a b", "a/b", "a\nb", "ä", "a,b"})
    EXPECT_FALSE(valid_job_name(bad)) << bad;
  EXPECT_TRUE(valid_job_name(std::string(64, 'x')));
  EXPECT_FALSE(valid_job_name(std::string(65, 'x')));
}

TEST(JobName, OfAProgramIsValidWhateverThatIsCalled) {
  EXPECT_EQ(default_job_name("/usr/bin/python3.11", 7), "python3.11-7");
  EXPECT_EQ(default_job_name("/a b/my prog", 7), "my_prog-7");
  EXPECT_EQ(default_job_name("/x/.hidden", 7), "job.hidden-7");
  EXPECT_EQ(default_job_name("/x/-dash", 7), "job-dash-7");
  EXPECT_EQ(default_job_name("", 7), "job-7");
  for (const std::string& program : {std::string(300, 'x'), std::string(300, ' '), std::string("\xff\xfe")})
    EXPECT_TRUE(valid_job_name(default_job_name(program, 4194304))) << program;
}

TEST(JobDirectory, HasItsFilesBelowTheJobsName) {
  const JobPaths paths = job_paths("/d", "j");
  EXPECT_EQ(paths.top, "/d/jobs/j");
  EXPECT_EQ(paths.renewing, "/d/jobs/j/alive/renewing");
  EXPECT_EQ(alive_path("/d", "j", "g0-12", "3"), "/d/jobs/j/alive/g0-12.3");
  EXPECT_EQ(default_exchange("/d", "j"), "dir:/d/jobs/j/x");
  EXPECT_EQ(sets_path("/d"), "/d/sets");
}

TEST(JobDirectory, GivesEachEpochAnotherName) {
  EXPECT_NE(new_epoch(3), new_epoch(3));
  EXPECT_EQ(new_epoch(3).substr(0, 3), "g3-");
  EXPECT_EQ(random_hex(16).size(), 32u);
}

}  // namespace
}  // namespace shadowib
