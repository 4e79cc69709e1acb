#include "hooks/store/piece_maker.h"

#include <algorithm>
#include <cstring>

#include "hooks/store/files.h"
#include "hooks/store/hex_hash.h"

namespace shadowib {

struct PieceMaker::Input {
  int host = 0;
  std::vector<FileRange> ranges;
  std::size_t range = 0;
  std::uint64_t left = 0;  // bytes of the range under way
  HexHash hash;
  std::vector<char> buffer;  // of a step, or of the stretch if that is shorter

  // Fills the buffer; behind the last range are zeros.
  Status fill(RangeSource& source, std::size_t bytes) {
    std::size_t at = 0;
    while (at < bytes) {
      if (left == 0 && range == ranges.size()) break;
      if (left == 0) {
        SHADOWIB_TRY(source.open(host, ranges[range]));
        left = ranges[range++].bytes;
      }
      const std::size_t part = std::min<std::uint64_t>(left, bytes - at);
      SHADOWIB_TRY(source.read(host, buffer.data() + at, part));
      left -= part, at += part;
    }
    hash.add({buffer.data(), at});
    std::memset(buffer.data() + at, 0, bytes - at);
    return {};
  }
};

PieceMaker::PieceMaker(const ParityGroup& group, std::vector<Stretch> stretches, RangeSource& source)
    : group_(group), stretches_(std::move(stretches)), source_(source) {}

PieceMaker::~PieceMaker() = default;

void PieceMaker::expect(std::vector<SegmentHashes> hashes) { expected_ = std::move(hashes); }

Status PieceMaker::begin() {
  const Stretch& stretch = stretches_[at_];
  const ParityShape shape = group_.shape();
  std::vector<int> rows;
  inputs_.clear();
  for (const int host : stretch.sources) {
    inputs_.push_back(std::make_unique<Input>());
    inputs_.back()->host = host;
    inputs_.back()->buffer.resize(std::min<std::uint64_t>(kFileStep, stretch.bytes));
    inputs_.back()->ranges = element_ranges(group_, host, stretch.stripe, stretch.offset, stretch.bytes);
    rows.push_back(shape.row(host, stretch.stripe));
  }
  code_ = std::make_unique<ElementCode>(shape, rows, shape.row(stretch.host, stretch.stripe));
  return {};
}

Status PieceMaker::end() {
  const Stretch& stretch = stretches_[at_];
  for (const std::unique_ptr<Input>& input : inputs_) {
    if (expected_.empty()) break;
    const auto host = static_cast<std::size_t>(input->host);
    const auto segment = static_cast<std::size_t>(group_.shape().segment_in(input->host, stretch.stripe));
    if (stretch.bytes != group_.segment || host >= expected_.size() || segment >= expected_[host].size() ||
        expected_[host][segment] != input->hash.hex())
      return Status::of(Code::kCorrupt, 0, "what came from host %.60s is not what its members have saved",
                        group_.hosts[host].host.name.c_str());
  }
  ++at_, done_ = 0;
  return {};
}

Status PieceMaker::step(std::uint8_t* to, std::size_t bytes) {
  std::vector<const std::uint8_t*> sources;
  for (const std::unique_ptr<Input>& input : inputs_) {
    SHADOWIB_TRY(input->fill(source_, bytes));
    sources.push_back(reinterpret_cast<const std::uint8_t*>(input->buffer.data()));
  }
  code_->compute(sources, bytes, to);
  return {};
}

Status PieceMaker::next(char* to, std::size_t bytes) {
  while (bytes > 0) {
    if (at_ == stretches_.size()) return Status(Code::kCorrupt, 0, "the piece is longer than its stripes");
    if (done_ == 0) SHADOWIB_TRY(begin());
    const std::size_t part =
        std::min({static_cast<std::uint64_t>(bytes), std::uint64_t{kFileStep}, stretches_[at_].bytes - done_});
    SHADOWIB_TRY(step(reinterpret_cast<std::uint8_t*>(to), part));
    to += part, bytes -= part, done_ += part;
    if (done_ == stretches_[at_].bytes) SHADOWIB_TRY(end());
  }
  return {};
}

}  // namespace shadowib
