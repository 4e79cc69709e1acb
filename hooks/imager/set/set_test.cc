// Sets are whole or absent, and every altered byte of one is noticed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/imager/set/manifest.h"
#include "hooks/imager/set/verify.h"
#include "hooks/job/job_directory.h"
#include "hooks/job/near_directory.h"
#include "hooks/store/store.h"

namespace shadowib {
namespace {
namespace fs = std::filesystem;

// A pretended image: "set_id member generation pid\n" and a filler. Its XXH3 is its length's digits, good enough for
// the rules tested here.
std::string image_text(const std::string& set_id, std::uint32_t member) {
  return set_id + " " + std::to_string(member) + " 0 " + std::to_string(100 + member) + "\n" + std::string(1000, 'x');
}
void digest(const std::string& bytes, std::uint8_t out[16]) {
  for (int i = 0; i < 16; ++i) out[i] = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) out[i % 16] = static_cast<std::uint8_t>(out[i % 16] * 31 + bytes[i]);
}

Status read_pretended(const std::string& path, ImageInfo* info) {
  std::string bytes;
  SHADOWIB_TRY(read_file(path, &bytes));
  char id[33];
  if (std::sscanf(bytes.c_str(), "%32s %u %u %d", id, &info->member, &info->generation, &info->pid) != 4)
    return Status(Code::kCorrupt, 0, "no header");
  for (int i = 0; i < 16; ++i) {
    char pair[3] = {id[2 * i], id[2 * i + 1], 0};
    info->set_id[i] = static_cast<std::uint8_t>(std::strtoul(pair, nullptr, 16));
  }
  info->bytes = bytes.size();
  digest(bytes, info->xxh3);
  info->descriptors = "table " + std::to_string(info->member);
  return {};
}

class SetTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/shadowib-set-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    dir_ = name;
  }
  void TearDown() override {
    fs::permissions(dir_, fs::perms::owner_all);
    fs::remove_all(dir_);
  }

  // Fills a staging directory with two images and its manifest.
  SetManifest filled(const std::string& staging, std::uint32_t number, const std::string& set_id) {
    SetManifest m{set_id,   "job",   number,
                  0,        "0.1.0", "2024-01-01T00:00:0" + std::to_string(number % 10) + "Z",
                  "ib2tcp", {},      {{"/lib/libc.so.6", "abcd"}, {"/data", ""}},
                  ""};
    for (std::uint32_t i = 0; i < 2; ++i) {
      std::string text = image_text(set_id, i), file = "member." + std::to_string(i) + ".image";
      std::uint8_t sum[16];
      digest(text, sum);
      std::ofstream(staging + "/" + file) << text;
      m.members.push_back({i, static_cast<int>(100 + i), file, text.size(), to_hex(sum, 16), "app", "host", 5, 6});
    }
    return m;
  }
  std::string committed(const std::string& set_id = std::string(32, 'a')) {
    std::string staging, path;
    std::uint32_t number = 0;
    EXPECT_TRUE(open_directory_store(dir_)->stage("job", &staging, &number).ok());
    Status s = commit_set(*open_directory_store(dir_), staging, filled(staging, number, set_id), &path);
    EXPECT_TRUE(s.ok()) << s.text();
    EXPECT_FALSE(fs::exists(staging));
    return path;
  }
  Status verify(const std::string& path) {
    SetManifest m;
    return verify_set_with({read_pretended, match_}, path, &m, nullptr);
  }
  static void put(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }

  std::string dir_;
  std::function<Status(const std::map<std::uint32_t, std::string>&)> match_ = [](const auto& tables) {
    EXPECT_EQ(tables.size(), 2u);
    EXPECT_EQ(tables.at(1), "table 1");
    return Status();
  };
};

// What a recovery of clusters needs is in manifests of format 5; those of format 4 are read, and do not have it.
TEST_F(SetTest, ClustersTellWhomTheyWereWiredToAndMembersTheirGenerations) {
  std::string staging;
  std::uint32_t number = 0;
  ASSERT_TRUE(open_directory_store(dir_)->stage("job", &staging, &number).ok());
  SetManifest written = filled(staging, number, std::string(32, 'a')), read;
  const auto pass = [&] {
    const std::string json = encode_manifest(written);
    const Status status = decode_manifest(json, manifest_sum(json), "set", &read);
    EXPECT_TRUE(status.ok()) << status.text();
    return json;
  };
  EXPECT_NE(pass().find("\"format\": 1"), std::string::npos);
  SetCluster cluster;
  cluster.name = "B";
  cluster.record = {1, 3, 1, federation::PerCluster(2), federation::PerCluster(2)};
  cluster.claim = "g0-1/clc/1/1.3.3";
  written.cluster = cluster;
  EXPECT_NE(pass().find("\"format\": 4"), std::string::npos);
  ASSERT_TRUE(read.cluster);
  EXPECT_FALSE(read.cluster->wired);
  written.cluster->wired = {0};
  EXPECT_NE(pass().find("\"format\": 5"), std::string::npos);
  EXPECT_EQ(read.cluster->wired, std::vector<unsigned>{0});
  written.cluster->wired = std::vector<unsigned>();
  pass();
  ASSERT_TRUE(read.cluster->wired) << "to none is not the same as not told";
  EXPECT_TRUE(read.cluster->logged_since.empty());
  EXPECT_TRUE(read.cluster->trimmed.empty());
  written.cluster->logged_since = {0, ~std::uint64_t{0}};
  written.cluster->trimmed = {7, 0};
  pass();
  EXPECT_EQ(read.cluster->logged_since, written.cluster->logged_since);
  EXPECT_EQ(read.cluster->trimmed, written.cluster->trimmed);
  written.cluster->wired = {2};
  const std::string json = encode_manifest(written);
  EXPECT_EQ(decode_manifest(json, manifest_sum(json), "set", &read).code(), Code::kCorrupt);
  written.cluster.reset();
  written.generation = 2;
  written.members[1].generation = 1;
  EXPECT_NE(pass().find("\"format\": 5"), std::string::npos);
  EXPECT_FALSE(read.members[0].generation);
  EXPECT_EQ(read.members[1].generation, 1u);
}

TEST_F(SetTest, WhatWasCommittedIsReadBackAndVerifies) {
  std::string path = committed();
  EXPECT_EQ(path, dir_ + "/sets/job.0001");
  SetManifest m;
  ASSERT_TRUE(read_manifest(path + "/", &m).ok());
  EXPECT_EQ(m.path, path);
  EXPECT_EQ(m.set_id, std::string(32, 'a'));
  EXPECT_EQ(m.members.size(), 2u);
  EXPECT_EQ(m.members[1].pid, 101);
  EXPECT_EQ(m.members[1].save_ns, 6);
  EXPECT_EQ(m.files[0], (std::pair<std::string, std::string>("/lib/libc.so.6", "abcd")));
  Status s = verify(path);
  EXPECT_TRUE(s.ok()) << s.text();
  for (const auto& entry : fs::recursive_directory_iterator(dir_ + "/sets"))
    if (entry.path().extension() != ".image") {  // those are written by the members
      EXPECT_EQ(static_cast<unsigned>(entry.status().permissions()) & 077u, 0u) << entry.path();
    }
  // The checksum file is what the standard tool expects.
  if (std::system("xxh128sum --version >/dev/null 2>&1") == 0) {
    EXPECT_EQ(std::system(("cd " + path + " && xxh128sum -c manifest.xxh3 >/dev/null").c_str()), 0);
  }
}

TEST_F(SetTest, EveryChangedByteOfTheManifestIsNoticed) {
  std::string path = committed();
  for (const char* file : {"/manifest.json", "/manifest.xxh3"}) {
    std::string good, json;
    ASSERT_TRUE(read_file(path + file, &good).ok() && read_file(path + "/manifest.json", &json).ok());
    for (std::size_t i = 0; i < good.size(); ++i)
      for (int bit = 0; bit < 8; ++bit) {
        std::string bad = good;
        bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
        SetManifest ignored;
        bool sum = std::string_view(file) == "/manifest.xxh3";
        ASSERT_EQ(decode_manifest(sum ? json : bad, sum ? bad : manifest_sum(json), path, &ignored).code(),
                  Code::kCorrupt);
        if (static_cast<std::size_t>(bit) != i % 8) continue;  // through the file system once per byte
        put(path + file, bad);
        ASSERT_EQ(verify(path).code(), Code::kCorrupt) << file << " byte " << i << " bit " << bit;
      }
    for (std::size_t length = 0; length < good.size(); ++length) {
      put(path + file, good.substr(0, length));
      ASSERT_EQ(verify(path).code(), Code::kCorrupt) << file << " cut to " << length;
    }
    put(path + file, good + "\n");
    ASSERT_EQ(verify(path).code(), Code::kCorrupt) << file << " with a line more";
    put(path + file, good);
    ASSERT_TRUE(verify(path).ok());
  }
}

TEST_F(SetTest, ImagesThatAreMissingTruncatedSwappedOrForeignAreRefused) {
  std::string path = committed(), other = committed(std::string(32, 'b'));
  const std::string first = path + "/member.0.image", second = path + "/member.1.image";
  std::string good0, good1, foreign;
  ASSERT_TRUE(read_file(first, &good0).ok() && read_file(second, &good1).ok());
  ASSERT_TRUE(read_file(other + "/member.0.image", &foreign).ok());
  auto expect_refused = [&](const char* what) {
    Status s = verify(path);
    EXPECT_EQ(s.code(), Code::kCorrupt) << what;
    EXPECT_NE(std::string(s.text()).find(path), std::string::npos) << s.text();
    put(first, good0);
    put(second, good1);
    EXPECT_TRUE(verify(path).ok());
  };
  fs::remove(first);
  expect_refused("missing");
  put(first, "");
  expect_refused("empty");
  put(first, good0.substr(0, good0.size() - 1));
  expect_refused("truncated");
  put(first, good0 + "x");
  expect_refused("longer");
  put(first, good1);
  expect_refused("of another member");
  put(first, foreign);
  expect_refused("of another set");
  std::string changed = good0;
  changed[500] = 'y';
  put(first, changed);
  expect_refused("changed where only the checksum tells");
  fs::remove(first);
  fs::create_symlink(second, first);
  EXPECT_EQ(verify(path).code(), Code::kCorrupt);
  fs::remove(first);
  expect_refused("replaced by a link");
}

TEST_F(SetTest, AnExtraFileAnEmptySetAndDescriptorsThatDoNotMatchAreRefused) {
  std::string path = committed();
  put(path + "/member.2.image", "x");
  EXPECT_EQ(verify(path).code(), Code::kCorrupt);
  fs::remove(path + "/member.2.image");
  match_ = [](const auto&) { return Status(Code::kRefused, 0, "descriptor 5"); };
  EXPECT_EQ(verify(path).code(), Code::kRefused);
  // No member although the checksum agrees, and no file at all.
  SetManifest m;
  ASSERT_TRUE(read_manifest(path, &m).ok());
  m.members.clear();
  put(path + "/manifest.json", encode_manifest(m));
  put(path + "/manifest.xxh3", manifest_sum(encode_manifest(m)));
  EXPECT_EQ(verify(path).code(), Code::kCorrupt);
  fs::create_directory(dir_ + "/sets/job.0009");
  EXPECT_EQ(verify(dir_ + "/sets/job.0009").code(), Code::kCorrupt);
  EXPECT_EQ(verify(dir_ + "/sets/job.0010").code(), Code::kNotFound);
  EXPECT_EQ(verify(path + "/manifest.json").code(), Code::kNotFound);
}

TEST_F(SetTest, AManifestMayNotLeadOutOfItsSetAndItsFormatIsChecked) {
  std::string path = committed();
  SetManifest m;
  ASSERT_TRUE(read_manifest(path, &m).ok());
  auto rewritten = [&](SetManifest changed, const std::string& from, const std::string& to) {
    std::string json = encode_manifest(changed);
    if (!from.empty()) json.replace(json.find(from), from.size(), to);
    put(path + "/manifest.json", json);
    put(path + "/manifest.xxh3", manifest_sum(json));
    return verify(path).code();
  };
  for (const char* file : {"../job.0002/member.0.image", "/etc/passwd", "..", "", "manifest.json"}) {
    SetManifest bad = m;
    bad.members[0].file = file;
    EXPECT_EQ(rewritten(bad, "", ""), Code::kCorrupt) << file;
  }
  SetManifest twice = m;
  twice.members[1] = twice.members[0];
  EXPECT_EQ(rewritten(twice, "", ""), Code::kCorrupt);
  EXPECT_EQ(rewritten(m, "\"format\": 1", "\"format\": 7"), Code::kVersion);
  EXPECT_EQ(rewritten(m, "\"format\": 1", "\"format\": 2"), Code::kCorrupt) << "a near set has a placement";
  EXPECT_EQ(rewritten(m, "\"number\"", "\"numver\""), Code::kCorrupt);
  EXPECT_EQ(rewritten(m, "", ""), Code::kOk);
}

// The images of a near set lie elsewhere on each host. A shadowib without stores must not take it for a damaged one.
TEST_F(SetTest, ANearSetIsReadWithItsPlacementAndALostImageIsNamed) {
  const std::string place = dir_ + "/place", id(32, 'a');
  std::string staging, path;
  std::uint32_t number = 0;
  fs::create_directory(place);
  ASSERT_TRUE(open_directory_store(dir_)->stage("job", &staging, &number).ok());
  SetManifest m = filled(staging, number, id);
  m.placement = {.store = {Tier::kDisk}, .place = place};
  for (const SetMember& member : m.members) m.placement.pieces.push_back({member.file, {{"id", "node7"}}});
  int fd = -1;
  ASSERT_TRUE(make_near_set(place, "job", id, dir_, &fd).ok());
  ::close(fd);
  const std::string near = near_set_path(place, "job", id) + "/";
  for (const SetMember& member : m.members) fs::rename(staging + "/" + member.file, near + member.file);
  const MemberTables tables{{0, "table 0"}, {1, "table 1"}};
  Status s = commit_set(*open_directory_store(dir_), staging, m, &path, tables);
  ASSERT_TRUE(s.ok()) << s.text();
  ASSERT_TRUE((s = verify(path)).ok()) << s.text();
  SetManifest back;
  ASSERT_TRUE(read_manifest(path, &back).ok());
  EXPECT_EQ(back.placement.store.text(), "disk:single");
  EXPECT_EQ(back.placement.place, place);
  std::string json, good;
  ASSERT_TRUE(read_file(path + "/manifest.json", &json).ok());
  EXPECT_NE(json.find("\"format\": 2"), std::string::npos);
  MemberTables read;
  ASSERT_TRUE(read_tables(back, &read).ok());
  EXPECT_EQ(read, tables);

  const std::string image = near + "member.1.image";
  ASSERT_TRUE(read_file(image, &good).ok());
  put(image, good.substr(1));
  EXPECT_EQ(verify(path).code(), Code::kCorrupt);
  fs::remove(image);
  s = verify(path);
  EXPECT_EQ(s.code(), Code::kNotFound);
  for (const char* word : {"member.1.image", "node7", "job.0001", place.c_str()})
    EXPECT_NE(std::string(s.text()).find(word), std::string::npos) << word << " in: " << s.text();
  put(image, good);
  // A directory that others may enter is not believed.
  fs::permissions(near_root(place), fs::perms::all);
  EXPECT_EQ(verify(path).code(), Code::kNotFound);
  fs::permissions(near_root(place), fs::perms::owner_all);
  EXPECT_TRUE(verify(path).ok());
  ASSERT_TRUE(read_file(path + "/member-1.table", &good).ok());
  put(path + "/member-1.table", good + "x");
  EXPECT_EQ(verify(path).code(), Code::kCorrupt);
  fs::remove(path + "/member-1.table");
  EXPECT_EQ(verify(path).code(), Code::kCorrupt);
}

TEST_F(SetTest, NumbersGrowAndStagingIsNeverListed) {
  std::string staging, again;
  std::uint32_t number = 0;
  committed();
  ASSERT_TRUE(open_directory_store(dir_)->stage("job", &staging, &number).ok());
  EXPECT_EQ(number, 2u);
  struct stat info {};
  ASSERT_EQ(::stat(staging.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  // As complete as it can be without the rename: still nothing that list, verify or restart take.
  SetManifest m = filled(staging, number, std::string(32, 'c'));
  put(staging + "/manifest.json", encode_manifest(m));
  put(staging + "/manifest.xxh3", manifest_sum(encode_manifest(m)));
  EXPECT_EQ(verify(staging).code(), Code::kNotFound);
  std::vector<ListedSet> sets;
  ASSERT_TRUE(list_sets(dir_, &sets).ok());
  ASSERT_EQ(sets.size(), 1u);
  ASSERT_TRUE(open_directory_store(dir_)->stage("job", &again, &number).ok());
  EXPECT_EQ(number, 3u) << "a number in use by an unfinished checkpoint is not given again";
  ASSERT_TRUE(open_directory_store(dir_)->stage("jobs.0001", &again, &number).ok());
  EXPECT_EQ(number, 1u) << "another job counts by itself";
  (void)open_store_of(staging)->discard(staging).ok();
  EXPECT_FALSE(fs::exists(staging));
  (void)open_store_of(dir_)->discard(dir_).ok();
  EXPECT_TRUE(fs::exists(dir_)) << "only a staging directory is ever discarded";
}

TEST_F(SetTest, ListIsInOrderAndShowsUnreadableSets) {
  std::string first = committed(), second = committed(), third = committed();
  put(second + "/manifest.json", "{}");
  fs::create_directory(dir_ + "/sets/notaset");
  std::vector<ListedSet> sets;
  ASSERT_TRUE(list_sets(dir_, &sets).ok());
  ASSERT_EQ(sets.size(), 3u);
  EXPECT_EQ(sets[0].status.code(), Code::kCorrupt);
  EXPECT_EQ(sets[0].manifest.path, second);
  EXPECT_EQ(sets[2].manifest.path, third) << "newest last";
  ASSERT_TRUE(open_store_of(first)->remove(first).ok());
  ASSERT_TRUE(list_sets(dir_, &sets).ok());
  EXPECT_EQ(sets.size(), 2u);
  EXPECT_TRUE(list_sets(dir_ + "/nowhere", &sets).ok());
  EXPECT_TRUE(sets.empty());
}

TEST_F(SetTest, ASetIsNeverReplacedAndAShortImageNeverCommitted) {
  std::string staging, path;
  std::uint32_t number = 0;
  ASSERT_TRUE(open_directory_store(dir_)->stage("job", &staging, &number).ok());
  SetManifest m = filled(staging, number, std::string(32, 'c'));
  put(staging + "/member.0.image", "short");
  EXPECT_EQ(commit_set(*open_directory_store(dir_), staging, m, &path).code(), Code::kIo);
  fs::remove(staging + "/member.0.image");
  EXPECT_EQ(commit_set(*open_directory_store(dir_), staging, m, &path).code(), Code::kIo);
  EXPECT_FALSE(fs::exists(path));
  m = filled(staging, number, std::string(32, 'c'));
  fs::create_directory(dir_ + "/sets/job.0001");
  put(dir_ + "/sets/job.0001/keep", "");
  EXPECT_EQ(commit_set(*open_directory_store(dir_), staging, m, &path).code(), Code::kBusy);
  EXPECT_TRUE(fs::exists(dir_ + "/sets/job.0001/keep"));
}

TEST_F(SetTest, ADirectoryMayBeReachedByALink) {
  fs::create_directory(dir_ + "/real");
  fs::create_directory_symlink(dir_ + "/real", dir_ + "/link");
  std::string staging;
  std::uint32_t number = 0;
  const Status s = open_directory_store(dir_ + "/link/new")->stage("job", &staging, &number);
  EXPECT_TRUE(s.ok()) << s.text();
  EXPECT_TRUE(fs::exists(dir_ + "/real/new/sets"));
}

TEST_F(SetTest, UnwritablePlacesAreNamed) {
  std::string staging;
  std::uint32_t number = 0;
  put(dir_ + "/file", "");
  Status s = open_directory_store(dir_ + "/file")->stage("job", &staging, &number);
  EXPECT_EQ(s.code(), Code::kIo);
  EXPECT_NE(std::string(s.text()).find(dir_ + "/file"), std::string::npos) << s.text();
  EXPECT_EQ(open_directory_store(dir_)->stage("../job", &staging, &number).code(), Code::kUsage);
  if (::geteuid() == 0) return;  // root may write anywhere
  fs::permissions(dir_, fs::perms::owner_read | fs::perms::owner_exec);
  s = open_directory_store(dir_)->stage("job", &staging, &number);
  EXPECT_EQ(s.code(), Code::kIo);
  EXPECT_NE(std::string(s.text()).find("--dir"), std::string::npos) << s.text();
}

TEST(SetNames, JobsWithDotsAndDigits) {
  std::string job;
  std::uint32_t number = 0;
  EXPECT_TRUE(parse_set_name("a.b-1.0042", &job, &number));
  EXPECT_EQ(job, "a.b-1");
  EXPECT_EQ(number, 42u);
  EXPECT_TRUE(parse_set_name("a.12345", &job, &number));
  for (const char* bad : {"a", "a.1", "a.00x1", ".0001", ".a.0001", "a.01234", "a b.0001", ""})
    EXPECT_FALSE(parse_set_name(bad, &job, &number)) << bad;
  EXPECT_TRUE(parse_hidden_name(".a.0001.staging-12ab", &job, &number));
  EXPECT_TRUE(parse_hidden_name(".a.0001.removing-12ab", &job, &number));
  for (const char* bad : {"a.0001.staging-1", ".a.0001", ".staging-1", ".", ""})
    EXPECT_FALSE(parse_hidden_name(bad, &job, &number)) << bad;
}

// Of one member.
SetManifest small_manifest() {
  SetManifest manifest;
  manifest.set_id = std::string(32, 'a');
  manifest.job = "j";
  manifest.number = 7;
  SetMember member;
  member.index = 3;
  member.pid = 4321;
  member.file = "member-3.img";
  member.xxh3 = std::string(32, 'b');
  manifest.members.push_back(member);
  return manifest;
}

TEST(Manifest, PacksHaveTheNamesOfPacksOfTheirMember) {
  SetManifest manifest = small_manifest(), read;
  const std::string plain = encode_manifest(manifest);
  EXPECT_NE(plain.find("\"format\": 1"), std::string::npos) << "a set without packs is read by older versions";
  EXPECT_EQ(plain.find("packs"), std::string::npos);
  const std::string good_name = pack_file(3, std::string(32, 'c'));
  manifest.members[0].packs = {{good_name, 4096}, {pack_file(3, std::string(32, 'd')), 8192}};
  const std::string good = encode_manifest(manifest);
  EXPECT_NE(good.find("\"format\": 3"), std::string::npos);
  ASSERT_TRUE(decode_manifest(good, manifest_sum(good), "set", &read).ok());
  ASSERT_EQ(read.members[0].packs.size(), 2u);
  EXPECT_EQ(read.members[0].packs[1].bytes, 8192u);
  EXPECT_TRUE(has_packs(read));
  for (const std::string& name : {std::string("../x"), pack_file(4, std::string(32, 'c')), good_name + "x",
                                  std::string("member-3.pages"), std::string("manifest.json")}) {
    manifest.members[0].packs = {{name, 4096}};
    const std::string bad = encode_manifest(manifest);
    EXPECT_EQ(decode_manifest(bad, manifest_sum(bad), "set", &read).code(), Code::kCorrupt) << name;
  }
}

// Found by fuzzing: 2e37 for a number was cast to int.
TEST(Manifest, NumbersAreWholeAndFit) {
  SetManifest read;
  const SetManifest manifest = small_manifest();
  const std::string good = encode_manifest(manifest);
  ASSERT_TRUE(decode_manifest(good, manifest_sum(good), "set", &read).ok());
  for (const char* wrong : {"2.2e37", "7.5", "-1e300", "99999999999999999999", "4294967296", "\"7\"", "null"})
    for (const char* field : {"4321", "7"}) {
      std::string bad = good;
      bad.replace(bad.find(std::string(": ") + field) + 2, std::string_view(field).size(), wrong);
      const Status status = decode_manifest(bad, manifest_sum(bad), "set", &read);
      EXPECT_EQ(status.code(), Code::kCorrupt) << field << " " << wrong;
    }
}

}  // namespace
}  // namespace shadowib
