// Images whose pages are compressed: each content comes back, and what is damaged or made to harm is refused.
#include <fcntl.h>
#include <lz4.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zstd.h>

#include <set>

#include "hooks/imager/image_reader.h"
#include "hooks/imager/restore/image_packs.h"
#include "hooks/imager/restore/page_stream.h"
#include "hooks/imager/tests/imager_fixture.h"

namespace shadowib {
namespace {

using Bytes = std::vector<std::uint8_t>;

void compress_by(const char* name) { ::setenv("IMAGER_TEST_COMPRESS", name, 1); }

Bytes frame_of(std::uint32_t codec, const Bytes& content) {
  Bytes frame(LZ4_compressBound(static_cast<int>(content.size())) + ZSTD_compressBound(content.size()));
  const std::size_t bytes =
      codec == kPagesLz4 ? static_cast<std::size_t>(LZ4_compress_default(
                               reinterpret_cast<const char*>(content.data()), reinterpret_cast<char*>(frame.data()),
                               static_cast<int>(content.size()), static_cast<int>(frame.size())))
                         : ZSTD_compress(frame.data(), frame.size(), content.data(), content.size(), 1);
  frame.resize(bytes);
  return frame;
}

class Compressed : public Imager, public testing::WithParamInterface<const char*> {
 protected:
  std::uint32_t codec() const { return std::string(GetParam()) == "lz4" ? kPagesLz4 : kPagesZstd; }
  Outcome save_compressed(const std::string& scenario, const std::function<void()>& also = {}) {
    return save(scenario, [also, name = GetParam(), file = (directory_ / "file").string()] {
      compress_by(name);
      ::setenv("IMAGER_TEST_FILE", file.c_str(), 1);
      if (also) also();
    });
  }
  LoadedImage load(ReadDepth depth = ReadDepth::kTables) {
    LoadedImage loaded;
    const int fd = ::open(image().c_str(), O_RDONLY | O_CLOEXEC);
    const Status status = load_image(fd, image(), depth, &loaded);
    EXPECT_TRUE(status.ok()) << status.text();
    ::close(fd);
    return loaded;
  }
  // The largest frame of private memory.
  PageBatch a_frame() {
    PageBatch found{};
    for (const PageBatch& b : load().batches)
      if (b.flags == 0 && b.frame.codec != 0 && b.page_count > found.page_count) found = b;
    EXPECT_GT(found.page_count, 100u);
    return found;
  }
  void expect_damaged(const std::string& words, const PageBatch& batch) {
    ImageInfo info;
    const Status status = read_image(image(), &info);
    EXPECT_EQ(status.code(), Code::kCorrupt) << words;
    EXPECT_NE(std::string(status.text()).find(words), std::string::npos) << status.text();
    const Outcome outcome = restart();
    EXPECT_EQ(outcome.status, 100 + static_cast<int>(Code::kCorrupt)) << words << outcome.text;
    EXPECT_NE(outcome.text.find("damaged at byte " + std::to_string(batch.record_offset)), std::string::npos)
        << words << outcome.text;
    EXPECT_EQ(outcome.text.find("restored"), std::string::npos) << outcome.text;
  }
};

INSTANTIATE_TEST_SUITE_P(Each, Compressed, testing::Values("lz4", "zstd"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Compressed, EachContentComesBack) {
  ASSERT_EQ(
      save("compressed", [file = (directory_ / "file").string()] { ::setenv("IMAGER_TEST_FILE", file.c_str(), 1); })
          .status,
      kSaved);
  const auto plain_bytes = fs::file_size(image());
  const LoadedImage plain = load(ReadDepth::kEverything);
  EXPECT_EQ(plain.header.version, kCheckedByHeaders) << "without the option nothing changes";
  EXPECT_EQ(plain.page_bytes, plain.stored_bytes);
  for (const std::function<void()>& also : {std::function<void()>(), std::function<void()>(with_saver)}) {
    for (const char* name : {"file", "0.img"}) fs::remove(directory_ / name);
    const Outcome saved = save_compressed("compressed", also);
    ASSERT_EQ(saved.status, kSaved) << saved.text;
    const LoadedImage loaded = load(ReadDepth::kEverything);
    EXPECT_EQ(loaded.header.version, kCompressed);
    EXPECT_LT(fs::file_size(image()), plain_bytes * 8 / 10);
    EXPECT_LT(loaded.stored_bytes, loaded.page_bytes);
    std::set<std::uint32_t> codecs, flags;
    for (const PageBatch& b : loaded.batches) {
      codecs.insert(b.frame.codec);
      if (b.frame.codec != 0) flags.insert(b.flags);
      // A frame takes a page less at least.
      EXPECT_LT(b.frame.file_bytes(), b.frame.codec == 0 ? 1 : b.page_count * kPage);
    }
    EXPECT_EQ(codecs, (std::set<std::uint32_t>{0, codec()})) << "noise is stored as it is";
    EXPECT_EQ(flags, (std::set<std::uint32_t>{0, kPagesClean})) << "pages of files are compressed as well";
    const Outcome restarted = restart();
    EXPECT_EQ(restarted.status, kRight) << restarted.text;
    // The file has other content now: the image's is used.
    std::ofstream(directory_ / "file") << "changed";
    const Outcome again = restart();
    EXPECT_EQ(again.status, kRight) << again.text;
  }
}

TEST_P(Compressed, EveryStateComesBack) {
  for (const char* scenario : {"threads", "changed_file", "mapping_states", "shared_segments", "vector_registers"}) {
    fs::remove(image());
    const Outcome saved = save_compressed(scenario);
    ASSERT_EQ(saved.status, kSaved) << scenario << saved.text;
    const Outcome restarted = restart();
    EXPECT_EQ(restarted.status, kRight) << scenario << restarted.text;
  }
}

TEST_P(Compressed, SeveralMembersComeBackTogether) {
  ASSERT_EQ(save_compressed("identity").status, kSaved);
  fs::rename(image(), directory_ / "a.img");
  ASSERT_EQ(save("member_one").status, kSaved);  // this one is not compressed
  fs::rename(image(), directory_ / "b.img");
  // Ends of processes are seen, whoever starts the command.
  for (const std::function<void()>& before :
       {std::function<void()>(), std::function<void()>([] { ::signal(SIGCHLD, SIG_IGN); })}) {
    const Outcome restarted = restart({"a", "b"}, before);
    EXPECT_EQ(restarted.status, kRight) << restarted.text;
  }
}

// Pages of one frame are had from packs, and each image restarts by itself.
TEST_P(Compressed, FramesArePacks) {
  const Outcome saved = save_compressed("compressed_again", incremental);
  ASSERT_EQ(saved.status, kSaved) << saved.text;
  EXPECT_EQ(saved.text.find("whole:"), std::string::npos) << saved.text;
  const auto first = fs::file_size(directory_ / "0" / "0.img");
  for (int i = 0; i < 6; ++i) {
    const fs::path set = directory_ / std::to_string(i);
    ImageInfo info;
    const Status status = read_image(set / "0.img", &info);
    EXPECT_TRUE(status.ok()) << i << status.text();
    if (i > 0) {
      EXPECT_LT(fs::file_size(set / "0.img"), first / 2);
      EXPECT_FALSE(info.packs.empty());
    }
    const Outcome restarted = run({RESTART_TOOL, set, "0"});
    EXPECT_EQ(restarted.status, kRight) << i << restarted.text;
  }
}

// An image may go by one that is compressed in another way, or not at all.
TEST_P(Compressed, PacksMayBeOfAnotherKind) {
  const auto save_next = [](const char* name) {
    incremental();
    compress_by(name);
  };
  ASSERT_EQ(save("compressed_again", [&] { save_next(GetParam()); }).status, kSaved);
  const fs::path packed = directory_ / "5" / "0.img";
  ImageInfo info;
  ASSERT_TRUE(read_image(packed, &info).ok());
  EXPECT_EQ(info.format_version, kShortRuns);
  fs::remove_all(directory_ / "0");
  ASSERT_EQ(save("compressed_again", incremental).status, kSaved);
  ASSERT_TRUE(read_image(packed, &info).ok());
  EXPECT_EQ(info.format_version, kShortRuns);
  EXPECT_EQ(run({RESTART_TOOL, directory_ / "5", "0"}).status, kRight);
}

TEST_P(Compressed, EveryByteOfAFrameCounts) {
  ASSERT_EQ(save_compressed("compressed_pages").status, kSaved);
  const PageBatch frame = a_frame();
  const std::uint64_t end = frame.record_offset + frame.frame.file_bytes();
  std::vector<std::uint64_t> places{frame.record_offset, frame.record_offset + frame.frame.bytes - 1, end - 1,
                                    frame.record_offset - sizeof(FrameHash), frame.record_offset - 1};
  for (std::uint64_t at = frame.record_offset; at < end; at += frame.frame.bytes / 9) places.push_back(at);
  ChangedImage bytes(image());
  for (const std::uint64_t at : places) {
    *bytes.at(at) ^= 0x10;
    bytes.write();
    ImageInfo info;
    EXPECT_EQ(read_image(image(), &info).code(), Code::kCorrupt) << at;
    *bytes.at(at) ^= 0x10;
  }
  *bytes.at(end - 1) ^= 1;  // of the zeros behind it, or the frame's last
  bytes.write();
  expect_damaged("checksum of compressed pages", frame);
  *bytes.at(end - 1) ^= 1;
  bytes.write();
  EXPECT_EQ(restart().status, kRight);
}

// Every checksum is right, but the frame is none of these pages.
TEST_P(Compressed, HostileFramesAreRefused) {
  ASSERT_EQ(save_compressed("compressed_pages").status, kSaved);
  const PageBatch batch = a_frame();
  const std::uint64_t record = batch.record_offset - 2 * kPage, room = batch.frame.bytes;
  const Bytes pages(batch.page_count * kPage, 'x');
  Bytes more = pages, less = pages;
  more.resize(pages.size() + kPage, 'x');
  less.resize(pages.size() - kPage);
  Bytes noise(room);
  std::uint32_t x = 1;
  for (std::uint8_t& byte : noise) byte = static_cast<std::uint8_t>((x = x * 1103515245 + 12345) >> 16);
  Bytes short_one = frame_of(codec(), pages);
  short_one.resize(short_one.size() / 2);
  const Bytes few = frame_of(codec(), less);
  const char* kNot = "cannot be decompressed";
  const std::vector<std::pair<Bytes, const char*>> frames{
      {noise, kNot}, {Bytes(room, 0), kNot}, {frame_of(codec(), more), kNot},
      {few, kNot},   {short_one, kNot},      {frame_of(codec(), pages), "checksum of a page"}};
  ChangedImage bytes(image());
  for (const auto& [frame, words] : frames) {
    ASSERT_LE(frame.size(), room);
    Bytes content = frame;
    // What is behind a frame is its own, too: length and place of all records stay.
    if (codec() == kPagesZstd && (words != kNot || frame == few)) {
      // Skippable frames fill the room.
      const std::uint32_t skip[2] = {0x184d2a50, static_cast<std::uint32_t>(room - frame.size() - 8)};
      content.resize(frame.size() + sizeof(skip));
      std::memcpy(content.data() + frame.size(), skip, sizeof(skip));
    }
    content.resize(room);
    std::memcpy(bytes.at(batch.record_offset), content.data(), room);
    bytes.seal_frame(record);
    bytes.write();
    if (words == kNot || codec() == kPagesZstd)
      expect_damaged(words, batch);
    else
      expect_damaged(kNot, batch);  // a block of LZ4 has to end where its bytes end
  }
}

// Or the restorer, which reads nothing for them, would take that frame for the next record's.
TEST_P(Compressed, GuardRegionsHaveNoFrames) {
  ASSERT_EQ(save_compressed("compressed_pages").status, kSaved);
  const std::uint64_t record = a_frame().record_offset - 2 * kPage;
  ChangedImage bytes(image());
  RecordHeader header;
  std::memcpy(&header, bytes.at(record), sizeof(header));
  header.flags |= kPagesGuard;
  std::memcpy(bytes.at(record), &header, sizeof(header));
  bytes.seal_frame(record);
  bytes.write();
  ImageInfo info;
  const Status status = read_image(image(), &info);
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_NE(std::string(status.text()).find("the header of a record of compressed pages"), std::string::npos)
      << status.text();
}

// The restorer reads them. It must not wait for pages of a process that has ended, nor must that be left over.
TEST_P(Compressed, PagesComeUntilTheirProcessEnds) {
  ASSERT_EQ(save_compressed("compressed_pages").status, kSaved);
  MemberImage member{load(), ::open(image().c_str(), O_RDONLY | O_CLOEXEC), image()};
  const PageBatch batch = a_frame();
  std::vector<std::uint32_t> wanted;
  for (std::uint32_t i = 0; i < member.image.batches.size(); ++i)
    if (member.image.batches[i].record_offset == batch.record_offset) wanted.assign(64, i);
  ASSERT_FALSE(wanted.empty());
  PageStreams streams;
  ASSERT_TRUE(streams.start({&member}).ok());
  const int stream = ::dup(streams.of(member.image.header.member));
  ASSERT_GE(stream, 0);
  ASSERT_TRUE(ask_for_pages(stream, wanted).ok());
  Bytes pages(batch.page_count * kPage), expected;
  ASSERT_EQ(::recv(stream, pages.data(), pages.size(), MSG_WAITALL), static_cast<ssize_t>(pages.size()));
  ASSERT_TRUE(ImageFiles(member.image, member.fd).read(batch, &expected).ok());
  EXPECT_TRUE(pages == expected);
  streams.end();
  std::size_t others = 0;
  while (::recv(stream, pages.data(), pages.size(), MSG_WAITALL) == static_cast<ssize_t>(pages.size())) ++others;
  EXPECT_LT(others, wanted.size() - 1) << "nothing was left to be sent";
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a process is left";
  ::close(stream);
  ::close(member.fd);
}

// A reader of version 7 knows no frames, and neither does an image that says it is of that version.
TEST_P(Compressed, FramesNeedTheirVersion) {
  ASSERT_EQ(save_compressed("compressed_pages").status, kSaved);
  ChangedImage bytes(image());
  const auto expect = [&](std::uint32_t version, Code code, const char* words) {
    ImageHeader header;
    std::memcpy(&header, bytes.at(0), sizeof(header));
    const std::uint32_t own = header.version;
    for (const std::uint32_t each : {version, own}) {
      header.version = each;
      header.xxh3 = XXH3_64bits(&header, offsetof(ImageHeader, xxh3));
      std::memcpy(bytes.at(0), &header, sizeof(header));
      bytes.write();
      ImageInfo info;
      const Status status = read_image(image(), &info);
      if (each == own) {
        EXPECT_TRUE(status.ok()) << status.text();
        continue;
      }
      EXPECT_EQ(status.code(), code);
      EXPECT_NE(std::string(status.text()).find(words), std::string::npos) << status.text();
    }
  };
  expect(kIncremental, Code::kCorrupt, "the header of a record of compressed pages");
  expect(kImageVersion + 1, Code::kVersion, "format version");
}

}  // namespace
}  // namespace shadowib
