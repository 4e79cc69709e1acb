// The store keeps P3: a set is whole or absent, whatever the moment of a power failure.
#include "hooks/store/store.h"

#include <gtest/gtest.h>

#include "hooks/store/tests/forgetful_files.h"

namespace shadowib {
namespace {

using Names = ForgetfulFiles::Names;
constexpr char kImage[] = "bytes of an image", kText[] = "text of a manifest";

// A checkpoint as the command takes it: the member writes its image by itself.
Status take(Store& store, Files& files, std::string* set) {
  std::string staging;
  std::uint32_t number = 0;
  SHADOWIB_TRY(store.stage("job", &staging, &number));
  if (const int error = files.write_new(staging + "/image", kImage); error != 0)
    return file_error(error, "write", staging);
  SHADOWIB_TRY(store.sync(staging, "image", sizeof(kImage) - 1));
  SHADOWIB_TRY(store.write(staging, "manifest", kText));
  return store.commit(staging, "job", number, set);
}

std::vector<StoredSet> committed(Store& store) {
  std::vector<StoredSet> sets;
  EXPECT_TRUE(store.list(&sets).ok());
  std::erase_if(sets, [](const StoredSet& set) { return !set.committed; });
  return sets;
}

void expect_whole(Store& store, const StoredSet& set) {
  std::string image, text;
  EXPECT_TRUE(store.read(set.path, "image", &image).ok()) << set.path;
  EXPECT_TRUE(store.read(set.path, "manifest", &text).ok()) << set.path;
  EXPECT_EQ(image, kImage);
  EXPECT_EQ(text, kText);
}

class PowerFailure : public testing::TestWithParam<Names> {};

// The machine stops after each change in turn, in the first checkpoint of a directory and in a later one.
TEST_P(PowerFailure, LeavesASetWholeOrAbsent) {
  for (int earlier = 0; earlier < 2; ++earlier) {
    bool done = false;
    for (int changes = 0; !done; ++changes) {
      ASSERT_LT(changes, 100);
      ForgetfulFiles files;
      const std::unique_ptr<Store> store = open_directory_store("/home/user/ckpt", files);
      std::string set;
      if (earlier == 1) {
        ASSERT_TRUE(take(*store, files, &set).ok());
      }
      files.stop_after(changes);
      done = take(*store, files, &set).ok();
      files.lose_power(GetParam());
      const std::vector<StoredSet> sets = committed(*store);
      EXPECT_GE(sets.size(), static_cast<std::size_t>(earlier + done)) << "lost, after " << changes << " changes";
      for (const StoredSet& found : sets) expect_whole(*store, found);
      // The next checkpoint is not held up by what is left.
      EXPECT_TRUE(take(*store, files, &set).ok());
    }
  }
}

TEST_P(PowerFailure, LeavesASetThatIsBeingRemovedWholeOrHidden) {
  for (int changes = 0; changes < 4; ++changes) {
    ForgetfulFiles files;
    const std::unique_ptr<Store> store = open_directory_store("/home/user/ckpt", files);
    std::string set;
    ASSERT_TRUE(take(*store, files, &set).ok());
    files.stop_after(changes);
    (void)store->remove(set).ok();
    files.lose_power(GetParam());
    for (const StoredSet& found : committed(*store)) expect_whole(*store, found);
  }
}

// A placement changes when copies are made again. A power failure leaves the old one or the new one.
TEST_P(PowerFailure, LeavesTheOldOrTheNewContentOfAPieceThatIsReplaced) {
  bool done = false;
  for (int changes = 0; !done; ++changes) {
    ForgetfulFiles files;
    const std::unique_ptr<Store> store = open_directory_store("/home/user/ckpt", files);
    std::string set, image, text;
    ASSERT_TRUE(take(*store, files, &set).ok());
    files.stop_after(changes);
    done = store->replace(set, "manifest", "another text").ok();
    files.lose_power(GetParam());
    ASSERT_EQ(committed(*store).size(), 1u) << changes;
    ASSERT_TRUE(store->read(set, "image", &image).ok() && image == kImage) << changes;
    ASSERT_TRUE(store->read(set, "manifest", &text).ok()) << changes;
    EXPECT_TRUE(text == "another text" || (text == kText && !done)) << changes << ": " << text;
    ASSERT_LT(changes, 20);
  }
}

INSTANTIATE_TEST_SUITE_P(Store, PowerFailure, testing::Values(Names::kForgotten, Names::kKept));

TEST(Store, ReplacesPiecesOfSetsOnly) {
  ForgetfulFiles files;
  const std::unique_ptr<Store> store = open_directory_store("/d", files);
  EXPECT_EQ(store->replace("/d/sets/nothing", "manifest", "text").code(), Code::kUsage);
}

TEST(Store, RefusesAnImageOfAnotherSizeThanReported) {
  ForgetfulFiles files;
  const std::unique_ptr<Store> store = open_directory_store("/d", files);
  std::string staging;
  std::uint32_t number = 0;
  ASSERT_TRUE(store->stage("job", &staging, &number).ok());
  ASSERT_EQ(files.write_new(staging + "/image", "four"), 0);
  EXPECT_TRUE(store->sync(staging, "image", 4).ok());
  EXPECT_EQ(store->sync(staging, "image", 5).code(), Code::kIo);
  EXPECT_EQ(store->sync(staging, "other", 4).error(), ENOENT);
}

TEST(Store, NumbersSetsPastThoseThatAreBeingWrittenOrRemoved) {
  ForgetfulFiles files;
  const std::unique_ptr<Store> store = open_directory_store("/d", files);
  std::string staging, set;
  std::uint32_t number = 0;
  ASSERT_TRUE(store->stage("job", &staging, &number).ok());
  EXPECT_EQ(number, 1u);
  ASSERT_TRUE(store->stage("job", &staging, &number).ok());
  EXPECT_EQ(number, 2u);
  ASSERT_TRUE(store->stage("other", &staging, &number).ok());
  EXPECT_EQ(number, 1u);
  EXPECT_EQ(store->stage("a b", &staging, &number).code(), Code::kUsage);
  ASSERT_TRUE(take(*store, files, &set).ok());
  EXPECT_EQ(set, "/d/sets/job.0003");
  EXPECT_EQ(store->discard(set).code(), Code::kUsage) << "a committed set";
}

// The directory of the sets cannot be synced, and perhaps nothing can be renamed any more; or a file server says that
// it has not renamed what it has.
class FailingFiles : public ForgetfulFiles {
 public:
  bool sync_fails = false, back_fails = false, says_otherwise = false;
  int sync(const std::string& path, std::uint64_t* bytes) override {
    return sync_fails && path.ends_with("/sets") ? EIO : ForgetfulFiles::sync(path, bytes);
  }
  int rename(const std::string& from, const std::string& to) override {
    return back_fails && parse_set(from) ? EROFS : ForgetfulFiles::rename(from, to);
  }
  int rename_if_absent(const std::string& from, const std::string& to) override {
    const int error = ForgetfulFiles::rename_if_absent(from, to);
    return says_otherwise ? ENOENT : error;
  }

 private:
  static bool parse_set(const std::string& path) { return path.find("/sets/job.") != std::string::npos; }
};

TEST(Store, SaysWhetherASetThatCouldNotBeCommittedIsGone) {
  for (const bool back_fails : {false, true}) {
    FailingFiles files;
    const std::unique_ptr<Store> store = open_directory_store("/d", files);
    std::string set;
    ASSERT_TRUE(take(*store, files, &set).ok());
    files.sync_fails = true;
    files.back_fails = back_fails;
    EXPECT_EQ(take(*store, files, &set).code(), Code::kIo);
    EXPECT_EQ(set, back_fails ? "/d/sets/job.0002" : "");
    EXPECT_EQ(committed(*store).size(), back_fails ? 2u : 1u);
  }
}

TEST(Store, LooksWhetherARenameThatFailedHasBeenDone) {
  FailingFiles files;
  files.says_otherwise = true;
  const std::unique_ptr<Store> store = open_directory_store("/d", files);
  std::string set;
  EXPECT_TRUE(take(*store, files, &set).ok());
  EXPECT_EQ(set, "/d/sets/job.0001");
  EXPECT_EQ(committed(*store).size(), 1u);
}

// A member still makes files in a directory that is being removed.
class BusyFiles : public ForgetfulFiles {
 public:
  int remove_all(const std::string& path) override {
    return ++tries_ < 3 ? ENOTEMPTY : ForgetfulFiles::remove_all(path);
  }

 private:
  int tries_ = 0;
};

TEST(Store, DiscardsAStagingDirectoryThatAMemberStillWritesTo) {
  BusyFiles files;
  const std::unique_ptr<Store> store = open_directory_store("/d", files);
  std::string staging;
  std::uint32_t number = 0;
  ASSERT_TRUE(store->stage("job", &staging, &number).ok());
  EXPECT_TRUE(store->discard(staging).ok());
  std::vector<StoredSet> sets;
  ASSERT_TRUE(store->list(&sets).ok());
  EXPECT_TRUE(sets.empty()) << "a hidden directory is left";
}

}  // namespace
}  // namespace shadowib
