/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_TESTS_TIER_MODEL_PARTS_H
#define KVX_TESTS_TIER_MODEL_PARTS_H
/* What the two files of the model share. */
#include "tier_model.h"

void list_add(list *l, int item);
int list_find(const list *l, int item); /* its place, or MODEL_NONE */
void list_drop(list *l, int item);

uint32_t held_by(const model *m, uint32_t tenant);
void use(model *m, int b);
void store_ended(model *m, int b, kvx_status verdict);
void load_ended(model *m, int b, kvx_status verdict);
void free_discarded(model *m, int b);

#endif
