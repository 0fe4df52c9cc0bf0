#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "apps/gpt/text/text_codec.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// Tokens of one text, where ~t is token t, not to be learned.
using Document = std::vector<std::int32_t>;

/// One document per line of JSONL: {"text": ...}, all of which is learned, or {"prompt": ..., "completion":
/// ...}, of which only the completion is learned. Other members are ignored. A document begins with the
/// codec's special tokens and ends with its end of text. Errc::corrupt names a line that is neither.
core::Result<std::vector<Document>> read_documents(std::string_view jsonl, TextCodec& codec);

/// Rows of `row` tokens, one after another, that hold all documents: each document goes into the first of the
/// last few rows that has room for it, whole unless it is longer than a row; then its pieces overlap by one
/// token. The first token of a document, or of a piece, is not learned. Rows are padded with `padding`, which
/// is not learned either. Rows of which nothing is learned are left out.
std::vector<std::int32_t> pack_documents(const std::vector<Document>& documents, std::size_t row,
                                         std::int32_t padding);

}  // namespace troupe::apps::gpt
