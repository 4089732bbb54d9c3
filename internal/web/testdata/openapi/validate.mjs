// Validates an OpenAPI document: node validate.mjs FILE
import SwaggerParser from "@apidevtools/swagger-parser";

const api = await SwaggerParser.validate(process.argv[2]);
console.log(`OpenAPI ${api.openapi}, ${Object.keys(api.paths).length} paths`);
