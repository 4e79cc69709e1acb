// Which files of a table a rehearsal misses, and that it changes none.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/table.h"

namespace shadowib::descriptors {
namespace {

namespace fs = std::filesystem;

class TableFiles : public testing::Test {
 protected:
  TableFiles() : top_(fs::temp_directory_path() / ("shadowib-rehearse-test-" + std::to_string(::getpid()))) {
    fs::remove_all(top_);
    fs::create_directory(top_);
    std::ofstream(top_ / "data") << "0123456789";
    fs::create_directory(top_ / "directory");
    ::mkfifo((top_ / "fifo").c_str(), 0600);
  }
  ~TableFiles() override { fs::remove_all(top_); }

  void add(Kind kind, const std::string& path, std::uint64_t size, int flags) {
    Object o;
    struct stat st {};
    ::stat(path.c_str(), &st);
    o.kind = kind;
    o.path = path;
    o.size = size;
    o.flags = flags;
    o.mode = st.st_mode;
    o.device = st.st_dev;
    o.inode = st.st_ino;
    o.rdev = st.st_rdev;
    table_.descriptors.push_back({static_cast<std::int32_t>(3 + 2 * table_.objects.size()),
                                  static_cast<std::uint32_t>(table_.objects.size()), 0});
    table_.objects.push_back(o);
  }
  // The obstacles, a line each.
  std::string check() {
    std::string bytes, told;
    encode_table(table_, &bytes);
    const Status status =
        check_files({{0, bytes}}, {0}, [&told](const Status& s) { told += std::string(s.text()) + "\n"; });
    EXPECT_TRUE(status.ok()) << status.text();
    return told;
  }

  fs::path top_;
  Table table_;
};

TEST_F(TableFiles, EachKindIsMissed) {
  add(Kind::kFile, top_ / "data", 10, O_RDWR | O_TRUNC | O_APPEND);
  add(Kind::kDirectory, top_ / "directory", 0, O_RDONLY | O_DIRECTORY);
  add(Kind::kDevice, "/dev/null", 0, O_RDWR);
  add(Kind::kFifo, top_ / "fifo", 0, O_RDWR);
  EXPECT_EQ(check(), "");
  EXPECT_EQ(fs::file_size(top_ / "data"), 10u) << "looking truncates nothing";
  fs::resize_file(top_ / "data", 9);
  EXPECT_NE(check().find("shorter than at the checkpoint"), std::string::npos);
  fs::remove(top_ / "data");
  fs::remove(top_ / "fifo");
  fs::remove(top_ / "directory");
  std::ofstream(top_ / "directory") << "a file now";
  const std::string told = check();
  EXPECT_NE(told.find("/data"), std::string::npos) << told;
  EXPECT_NE(told.find("/directory"), std::string::npos) << told;
  EXPECT_NE(told.find("/fifo"), std::string::npos) << told;
  std::ofstream(top_ / "fifo") << "a file now";
  EXPECT_NE(check().find("no FIFO of that name"), std::string::npos);
}

// A socket of the table listens, or is bound, at a port that somebody else has, and then has no more.
TEST(TablePorts, AreTriedAndGivenBack) {
  for (const Kind kind : {Kind::kTcp, Kind::kUdp}) {
    const int type = kind == Kind::kTcp ? SOCK_STREAM : SOCK_DGRAM;
    sockaddr_in address{};
    socklen_t length = sizeof(address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int other = ::socket(AF_INET, type | SOCK_CLOEXEC, 0);
    ASSERT_EQ(::bind(other, reinterpret_cast<sockaddr*>(&address), length), 0);
    ASSERT_EQ(::getsockname(other, reinterpret_cast<sockaddr*>(&address), &length), 0);
    if (kind == Kind::kTcp) {
      ASSERT_EQ(::listen(other, 1), 0);
    }

    Table table;
    table.descriptors.push_back({3, 0, 0});
    Object& o = table.objects.emplace_back();
    o.kind = kind;
    o.inode = 7;
    o.domain = AF_INET;
    o.type = type;
    o.state = kind == Kind::kTcp ? SocketState::kListening : SocketState::kFresh;
    o.backlog = 1;
    o.local.assign(reinterpret_cast<const char*>(&address), sizeof(address));
    std::string bytes;
    encode_table(table, &bytes);
    std::vector<Status> told;
    const auto check = [&] {
      told.clear();
      const Status status = check_ports({{0, bytes}}, {0}, [&told](const Status& s) { told.push_back(s); });
      EXPECT_TRUE(status.ok()) << status.text();
      return told.size();
    };
    ASSERT_EQ(check(), 1u);
    EXPECT_EQ(told[0].code(), Code::kBusy) << told[0].text();
    ::close(other);
    EXPECT_EQ(check(), 0u);
    EXPECT_EQ(check(), 0u) << "it was not given back";
  }
}

TEST_F(TableFiles, HighestNumber) {
  std::string bytes;
  int highest = 0;
  encode_table(table_, &bytes);
  ASSERT_TRUE(highest_descriptor(bytes, &highest).ok());
  EXPECT_EQ(highest, -1);
  add(Kind::kDevice, "/dev/null", 0, O_RDWR);
  add(Kind::kDevice, "/dev/zero", 0, O_RDWR);
  encode_table(table_, &bytes);
  ASSERT_TRUE(highest_descriptor(bytes, &highest).ok());
  EXPECT_EQ(highest, 5);
  EXPECT_FALSE(highest_descriptor("no table", &highest).ok());
}

}  // namespace
}  // namespace shadowib::descriptors
