// What ranks tell each other, and in what form.
#include "hooks/launcher/board.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "hooks/imager/descriptors/capture/launcher_socket.h"
#include "hooks/launcher/connection.h"
#include "hooks/launcher/pmix_library.h"

namespace shadowib {
namespace {

const StoredValues kValues = {
    {"a", {PMIX_STRING, "text"}}, {"b", {PMIX_BYTE_OBJECT, std::string("\0\1\2", 3)}}, {"c", {PMIX_STRING, ""}}};

TEST(StoredValues, ComeBackWhole) {
  StoredValues decoded;
  ASSERT_TRUE(decode_values(encode_values(kValues), &decoded));
  EXPECT_EQ(decoded, kValues);
  ASSERT_TRUE(decode_values(encode_values({}), &decoded));
  EXPECT_TRUE(decoded.empty());
}

TEST(StoredValues, AreRefusedCutShortOrTooLong) {
  const std::string text = encode_values(kValues);
  StoredValues decoded;
  for (std::size_t length = 0; length < text.size(); ++length)
    EXPECT_FALSE(decode_values(text.substr(0, length), &decoded)) << length;
  EXPECT_FALSE(decode_values(text + "x", &decoded));
}

TEST(StoredValues, AreThoseOfPmix) {
  pmix_value_t number{};
  number.type = PMIX_UINT64;
  number.data.uint64 = 0x123456789abcdef0;
  StoredValue stored;
  ASSERT_TRUE(store_value(number, &stored));
  pmix_value_t* loaded = load_value(stored);
  ASSERT_NE(loaded, nullptr);
  EXPECT_EQ(loaded->data.uint64, number.data.uint64);
  std::free(loaded);
  char bytes[] = {1, 0, 2};
  pmix_value_t object{};
  object.type = PMIX_BYTE_OBJECT;
  object.data.bo = {bytes, sizeof(bytes)};
  ASSERT_TRUE(store_value(object, &stored));
  loaded = load_value(stored);
  ASSERT_NE(loaded, nullptr);
  ASSERT_EQ(loaded->data.bo.size, sizeof(bytes));
  EXPECT_EQ(std::memcmp(loaded->data.bo.bytes, bytes, sizeof(bytes)), 0);
  std::free(loaded->data.bo.bytes);
  std::free(loaded);
  object.type = PMIX_PROC_INFO;
  EXPECT_FALSE(store_value(object, &stored));
  EXPECT_EQ(load_value({PMIX_UINT64, "short"}), nullptr);
  EXPECT_EQ(load_value({PMIX_PROC_INFO, ""}), nullptr);
}

TEST(Uri, LeadsToTheServer) {
  sockaddr_in in{};
  const std::string found = address_in_uri("577765376.0;tcp4://127.0.0.1:36397");
  ASSERT_EQ(found.size(), sizeof(in));
  std::memcpy(&in, found.data(), sizeof(in));
  EXPECT_EQ(in.sin_family, AF_INET);
  EXPECT_EQ(ntohs(in.sin_port), 36397);
  EXPECT_EQ(ntohl(in.sin_addr.s_addr), INADDR_LOOPBACK);
  EXPECT_EQ(address_in_uri("x.0;tcp6://[::1]:80").size(), sizeof(sockaddr_in6));
  EXPECT_EQ(address_in_uri("x.0;usock:/tmp/x"), "");
  EXPECT_EQ(address_in_uri(""), "");
}

int listener() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  return ::listen(fd, 1) == 0 ? fd : -1;
}

bool only_theirs_is_left_out(int theirs, int stream) {
  const int own = listener();
  leave_out_listeners("launch-of-a-test");
  using descriptors::is_left_out;
  return own > 2 && is_left_out(theirs) && !is_left_out(own) && !is_left_out(stream);
}

// slurmstepd's, but not what the rank listens at itself, and no pipe.
TEST(Inherited, IsLeftOutWhatTheLauncherListensAt) {
  const int theirs = listener();
  int stream[2];
  ASSERT_GE(theirs, 0);
  ASSERT_EQ(::pipe(stream), 0);
  const pid_t rank = ::fork();
  if (rank == 0) ::_exit(only_theirs_is_left_out(theirs, stream[0]) ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(rank, &status, 0), rank);
  EXPECT_EQ(status, 0);
  for (const int fd : {theirs, stream[0], stream[1]}) ::close(fd);
}

// Which does not show what it has.
TEST(Inherited, IsLeftOutWhatAnotherUsersLauncherListensAt) {
  if (::geteuid() != 0) GTEST_SKIP() << "becoming another user needs root";
  const int theirs = listener();
  int stream[2];
  ASSERT_EQ(::pipe(stream), 0);
  const pid_t rank = ::fork();
  if (rank == 0)
    ::_exit(::setuid(65534) == 0 && ::prctl(PR_SET_DUMPABLE, 1) == 0 && only_theirs_is_left_out(theirs, stream[0])
                ? 0
                : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(rank, &status, 0), rank);
  EXPECT_EQ(status, 0);
  for (const int fd : {theirs, stream[0], stream[1]}) ::close(fd);
}

TEST(Fences, AreNamedByTheirRanks) {
  std::vector<std::uint32_t> all = {2, 0, 1}, some = {2, 0}, same = {0, 2, 2};
  EXPECT_EQ(fence_set(&all, 3), "all");
  const std::string name = fence_set(&some, 3);
  EXPECT_NE(name, "all");
  EXPECT_EQ(fence_set(&same, 3), name);
  EXPECT_TRUE(Exchange::valid_key(name));
}

TEST(Aborts, NameTheirRanks) {
  AbortRequest decoded;
  std::string name;
  ASSERT_TRUE(decode_abort(encode_abort("job.1", {4, 77, "it is\nover", {1, 5}}), &name, &decoded));
  EXPECT_EQ(name, "job.1");
  EXPECT_EQ(decoded.from, 4u);
  EXPECT_EQ(decoded.status, 77);
  EXPECT_EQ(decoded.message, "it is over");
  EXPECT_EQ(decoded.ranks, (std::vector<std::uint32_t>{1, 5}));
  EXPECT_FALSE(decode_abort("nonsense", &name, &decoded));
}

}  // namespace
}  // namespace shadowib
