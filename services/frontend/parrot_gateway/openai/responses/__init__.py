"""OpenAI's Responses API: https://developers.openai.com/api/reference/resources/responses."""
