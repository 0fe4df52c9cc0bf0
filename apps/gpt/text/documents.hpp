#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "apps/gpt/text/text_codec.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// Tokens of one text, of which ~t is token t that is not learned.
using Document = std::vector<std::int32_t>;

/// One document per line of JSONL: {"text": ...}, all of which is learned, or {"prompt": ..., "completion":
/// ...}, of which the completion is. Other members are passed over. A document begins with the codec's
/// special tokens and ends with its end of text. Errc::corrupt names the line that is none of these.
core::Result<std::vector<Document>> read_documents(std::string_view jsonl, TextCodec& codec);

/// Rows of `row` tokens, one after the other, that hold all documents: each in the first row of the last few
/// with room for it, and whole unless it is longer than a row; then its pieces overlap by one token. The
/// first token of a document, or of a piece, is not learned. Rows are filled up with `padding`, which is not
/// learned either. Rows of which nothing is learned are left out.
std::vector<std::int32_t> pack_documents(const std::vector<Document>& documents, std::size_t row,
                                         std::int32_t padding);

}  // namespace troupe::apps::gpt
