// Whether all ranks hold the same model: their programs, the files of configuration and tokenizer,
// and the weights. Before a collective that could find a difference all ranks have agreed that none
// of them has an error.
#pragma once

#include <span>
#include <string>

#include "base/digest.h"
#include "base/result.h"
#include "comm/group.h"

namespace convene::engine {

// *Collective.* Error on all ranks: their programs differ, or one of the files of `directory` that
// are read whole, and it is named.
Status AgreeOnFiles(comm::Group& group, const std::string& directory);

// *Collective.* Error on all ranks: a tensor that several of them name differs, and it is named.
Status AgreeOnTensors(comm::Group& group, std::span<const NamedDigest> digests);

// *Collective.* Whether all ranks run on one machine and have mapped the very same files there;
// then there is nothing to compare. `identities`: of a rank's files, as MappedFile::identity.
bool HaveSameFiles(comm::Group& group, const std::string& identities);

}  // namespace convene::engine
