// The content of all mappings, as records of at most 1 MiB.
#pragma once

#include "hooks/imager/save/base_index.h"
#include "hooks/imager/save/image_writer.h"
#include "hooks/imager/save/mapping_table.h"

namespace shadowib {

class PageWriter;

// A saver is a copy of the process, which has private memory alone.
enum class PagePart {
  kAll,
  kNotCopied,  // shared memory; ranges that fork leaves out or wipes; data files, whose descriptions may have locks
  kCopied,     // the rest
};
bool is_copied(const MappingTable& table, std::uint32_t index);

// Takes its memory from the scratch, before the table of mappings, which uses up the rest. nullptr: none left.
// `hashed`: records have hashes of their pages.
PageWriter* make_page_writer(Scratch* scratch, ImageWriter* writer, bool hashed);

// Pages that `base` has are left out, and told of in records of their own. Only of a writer with hashes.
void leave_out(PageWriter* pages, BaseIndex* base);

// In a process that ends behind it: what is written is given back on the way. Memory with one of these addresses
// stays, and so do mappings that are small.
void give_back(PageWriter* pages, const std::uint64_t* needed, std::uint32_t count);

// Writes `part` of what `table` lists, then of what is to be written of `shared`, and closes what the writer had
// open. Nothing untouched is touched; pages of zeros are left out.
Status write_pages(PageWriter* pages, const MappingTable& table, const SharedList& shared, PagePart part);

}  // namespace shadowib
