// JSON for frontends: what the library reads and writes itself with.
#pragma once

#include "kdelta/io/json.h"
#include "kdelta/io/json_reader.h"
