// The reader of portable images: whatever the bytes, it throws or gives an image whose every use is within bounds.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "libraries/portable/image/convert.h"
#include "libraries/portable/image/image.h"
#include "libraries/portable/image/pages.h"
#include "libraries/portable/image/values.h"

namespace shadowib::portable {
namespace {

constexpr std::uint64_t kMostBytes = 1 << 20;  // of an object in the other layout

// A layout as that of another architecture: every type as it is, in the other byte order.
Layouts other_order(const Layouts& layouts) {
  Layouts other = layouts;
  other.big_endian = !layouts.big_endian;
  return other;
}

void convert_all(const Image& image, const Layouts& to) {
  Converter converter(image.layouts, to);
  for (const Object& object : image.objects) {
    const std::uint64_t size = value_bytes(image, object);
    std::uint64_t new_size = 0;
    try {
      new_size = converter.new_size(object.type, object.type, size);
      if (new_size > kMostBytes) continue;
      std::vector<unsigned char> memory(new_size);
      if (object.data != kNoData)
        converter.convert(object.type, object.type, image.data(object), size, memory.data(), memory.size());
    } catch (const Refused&) {
    }
    for (std::uint64_t offset = 0; offset <= size + 1 && offset < 64; offset++) {
      try {
        for (TypeIndex element : {kNoType, static_cast<TypeIndex>(offset % image.layouts.types.size())})
          if (converter.offset_of(object.type, object.type, size, new_size, offset, element) > new_size) std::abort();
      } catch (const Refused&) {
      }
    }
  }
}

}  // namespace
}  // namespace shadowib::portable

using namespace shadowib::portable;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    PageReader reader(size);
    for (std::size_t at = 0; at < size; at += kPageSize) reader.add(data + at);
  } catch (const Refused&) {
  }
  try {
    const Image image = decode(std::vector<unsigned char>(data, data + size));
    (void)digest(image);
    (void)to_text(image, 4);
    convert_all(image, other_order(image.layouts));
    convert_all(image, image.layouts);
    const AddressIndex index(image);
    for (const Object& object : image.objects) {
      const Target target = index.find(object.address + object.size / 2);
      if (target.kind == Target::kObject && target.offset > image.objects[target.index].size) std::abort();
    }
  } catch (const Refused&) {
  }
  return 0;
}
