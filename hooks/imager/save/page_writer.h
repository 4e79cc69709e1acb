// The content of all mappings, as records of at most 1 MiB.
#pragma once

#include "hooks/imager/save/image_writer.h"
#include "hooks/imager/save/mapping_table.h"

namespace shadowib {

class PageWriter;

// Takes its memory from the scratch, before the table of mappings, which uses up the rest. nullptr: none left.
PageWriter* make_page_writer(Scratch* scratch, ImageWriter* writer);

// Writes what `table` lists, then what is to be written of `shared`, and closes what the writer had open. Nothing
// untouched is touched; pages of zeros are left out.
Status write_pages(PageWriter* pages, const MappingTable& table, const SharedList& shared);

}  // namespace shadowib
